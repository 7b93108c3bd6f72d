-- Workers whose key is closed until then, since what they answered was wrong.
CREATE TABLE bans (
    worker_key  TEXT PRIMARY KEY NOT NULL,
    nickname    TEXT NOT NULL,
    reason      TEXT NOT NULL,
    times       INTEGER NOT NULL,
    banned_s    INTEGER NOT NULL,
    until_s     INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX bans_by_time ON bans (banned_s);
