-- What the hub remembers over restarts.
-- A key is stored as its SHA-256 only: a stolen file opens nothing.
CREATE TABLE IF NOT EXISTS keys (
    key_sha256  BLOB PRIMARY KEY NOT NULL CHECK (length(key_sha256) = 32),
    role        TEXT NOT NULL CHECK (role IN ('join', 'api', 'admin')),
    name        TEXT NOT NULL,
    created_s   INTEGER NOT NULL
) WITHOUT ROWID;

-- One row per worker_key, which the worker chose; counters go on over its reconnects.
CREATE TABLE IF NOT EXISTS workers (
    worker_key      TEXT PRIMARY KEY NOT NULL,
    nickname        TEXT NOT NULL,
    description     TEXT NOT NULL,
    pairs_answered  INTEGER NOT NULL,
    bytes_sent      INTEGER NOT NULL,
    bad_answers     INTEGER NOT NULL,
    first_seen_s    INTEGER NOT NULL,
    last_seen_s     INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS workers_by_last_seen ON workers (last_seen_s);

CREATE TABLE IF NOT EXISTS counters (
    name   TEXT PRIMARY KEY NOT NULL,
    value  INTEGER NOT NULL
) WITHOUT ROWID;
