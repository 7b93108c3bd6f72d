-- Who lends, by the Ed25519 key that only its owner has, and what its workers did: in all and for
-- each UTC day. A nickname is kept while its owner lets others see it.
CREATE TABLE contributors (
    public_key    BLOB PRIMARY KEY NOT NULL CHECK (length(public_key) = 32),
    nickname      TEXT NOT NULL,
    pairs         INTEGER NOT NULL,
    verified      INTEGER NOT NULL,
    first_seen_s  INTEGER NOT NULL,
    last_seen_s   INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX contributors_by_pairs ON contributors (pairs);
CREATE INDEX contributors_by_last_seen ON contributors (last_seen_s);

CREATE TABLE contributor_days (
    public_key  BLOB NOT NULL,
    day_s       INTEGER NOT NULL,
    pairs       INTEGER NOT NULL,
    verified    INTEGER NOT NULL,
    PRIMARY KEY (public_key, day_s)
) WITHOUT ROWID;
CREATE INDEX contributor_days_by_day ON contributor_days (day_s);
CREATE TRIGGER contributor_is_forgotten AFTER DELETE ON contributors BEGIN
    DELETE FROM contributor_days WHERE public_key = old.public_key;
END;

-- What all workers did, those of nobody's included.
CREATE TABLE work_days (
    day_s     INTEGER PRIMARY KEY NOT NULL,
    pairs     INTEGER NOT NULL,
    verified  INTEGER NOT NULL
);
