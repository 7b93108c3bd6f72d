-- What several hubs of one model share. The columns are those of the steps for sqlite beside this
-- folder, in the same order. A key is stored as its SHA-256 only.
CREATE TABLE keys (
    key_sha256         BYTEA PRIMARY KEY CHECK (length(key_sha256) = 32),
    role               TEXT NOT NULL CHECK (role IN ('join', 'api', 'admin')),
    name               TEXT NOT NULL,
    created_s          BIGINT NOT NULL,
    tokens_per_minute  BIGINT NOT NULL DEFAULT 0,  -- 0: no limit
    expires_s          BIGINT NOT NULL DEFAULT 0,  -- 0: never
    revoked_s          BIGINT NOT NULL DEFAULT 0   -- 0: the key is valid
);

CREATE TABLE workers (
    worker_key      TEXT PRIMARY KEY,
    nickname        TEXT NOT NULL,
    description     TEXT NOT NULL,
    pairs_answered  BIGINT NOT NULL,
    bytes_sent      BIGINT NOT NULL,
    bad_answers     BIGINT NOT NULL,
    first_seen_s    BIGINT NOT NULL,
    last_seen_s     BIGINT NOT NULL
);
CREATE INDEX workers_by_last_seen ON workers (last_seen_s);

CREATE TABLE counters (
    name   TEXT PRIMARY KEY,
    value  BIGINT NOT NULL
);

CREATE TABLE token_use (
    key_id         TEXT NOT NULL,
    day_s          BIGINT NOT NULL,
    requests       BIGINT NOT NULL,
    prompt_tokens  BIGINT NOT NULL,
    answer_tokens  BIGINT NOT NULL,
    PRIMARY KEY (key_id, day_s)
);

CREATE TABLE history (
    minute_s        BIGINT PRIMARY KEY,
    answer_tokens   BIGINT NOT NULL,
    answers         BIGINT NOT NULL,
    first_token_us  BIGINT NOT NULL,  -- the sum over `answers`
    call_p50_us     BIGINT NOT NULL,  -- of calls to workers, of the slowest hub; 0: no calls
    call_p99_us     BIGINT NOT NULL,
    workers         BIGINT NOT NULL,  -- of the hub with the most
    covered         BIGINT NOT NULL,  -- of the hub with the fewest
    units           BIGINT NOT NULL,
    call_p999_us    BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE bans (
    worker_key  TEXT PRIMARY KEY,
    nickname    TEXT NOT NULL,
    reason      TEXT NOT NULL,
    times       BIGINT NOT NULL,
    banned_s    BIGINT NOT NULL,
    until_s     BIGINT NOT NULL
);
CREATE INDEX bans_by_time ON bans (banned_s);

CREATE TABLE contributors (
    public_key    BYTEA PRIMARY KEY CHECK (length(public_key) = 32),
    nickname      TEXT NOT NULL,
    pairs         BIGINT NOT NULL,
    verified      BIGINT NOT NULL,
    first_seen_s  BIGINT NOT NULL,
    last_seen_s   BIGINT NOT NULL
);
CREATE INDEX contributors_by_pairs ON contributors (pairs);
CREATE INDEX contributors_by_last_seen ON contributors (last_seen_s);

CREATE TABLE contributor_days (
    public_key  BYTEA NOT NULL REFERENCES contributors ON DELETE CASCADE,
    day_s       BIGINT NOT NULL,
    pairs       BIGINT NOT NULL,
    verified    BIGINT NOT NULL,
    PRIMARY KEY (public_key, day_s)
);
CREATE INDEX contributor_days_by_day ON contributor_days (day_s);

CREATE TABLE work_days (
    day_s     BIGINT PRIMARY KEY,
    pairs     BIGINT NOT NULL,
    verified  BIGINT NOT NULL
);

-- What is left of the limits of keys: `level` tokens at the time at_ms of this database's clock.
CREATE TABLE token_buckets (
    key_id      TEXT PRIMARY KEY,
    per_minute  DOUBLE PRECISION NOT NULL,
    level       DOUBLE PRECISION NOT NULL,
    at_ms       BIGINT NOT NULL
);

-- The token of the join link, in plain text like the file of a state folder; one row at most.
CREATE TABLE join_token (
    one    BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (one),
    token  TEXT NOT NULL
);

-- The number of the last batch of counts that each process has written, so that a batch whose answer
-- was lost is not counted twice.
CREATE TABLE writers (
    writer     TEXT PRIMARY KEY,
    batch      BIGINT NOT NULL,
    written_s  BIGINT NOT NULL
);

-- The hubs. A row counts until its deadline, by the clock of this database; `fence` is the number of
-- the hub's present incarnation.
CREATE SEQUENCE hub_fences;
CREATE TABLE hubs (
    hub_id       TEXT PRIMARY KEY,
    fence        BIGINT NOT NULL,
    deadline_ms  BIGINT NOT NULL,
    address      TEXT NOT NULL,
    model        TEXT NOT NULL,
    package      TEXT NOT NULL,  -- SHA-256 of the manifest
    version      TEXT NOT NULL,
    streams      BIGINT NOT NULL,  -- answers that run
    workers      BIGINT NOT NULL,
    keys_seen    TEXT NOT NULL   -- digest of the keys that the hub uses
);

CREATE FUNCTION moex_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('moex_changed', TG_TABLE_NAME);
    RETURN NULL;
END $$;
CREATE TRIGGER keys_changed AFTER INSERT OR UPDATE OR DELETE ON keys
    FOR EACH STATEMENT EXECUTE FUNCTION moex_changed();
CREATE TRIGGER bans_changed AFTER INSERT OR UPDATE OR DELETE ON bans
    FOR EACH STATEMENT EXECUTE FUNCTION moex_changed();
CREATE TRIGGER join_token_changed AFTER INSERT OR UPDATE OR DELETE ON join_token
    FOR EACH STATEMENT EXECUTE FUNCTION moex_changed();
