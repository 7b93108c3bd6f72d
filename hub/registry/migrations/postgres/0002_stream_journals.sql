-- What another hub needs to go on with the streams of a hub that ended. All contents are sealed with
-- the key of the fleet. A row is deleted at delete_ms by the clock of this database, which its hub
-- moves on while the stream runs.
CREATE TABLE streams (
    stream_id  TEXT PRIMARY KEY,
    hub_id     TEXT NOT NULL,    -- the hub that computes the stream
    fence      BIGINT NOT NULL,  -- and its incarnation
    head       BYTEA NOT NULL,   -- sealed: the request
    ended      BOOLEAN NOT NULL,
    delete_ms  BIGINT NOT NULL
);
CREATE INDEX streams_by_hub ON streams (hub_id);

CREATE TABLE stream_pieces (
    stream_id  TEXT NOT NULL REFERENCES streams ON DELETE CASCADE,
    position   BIGINT NOT NULL,  -- number of the records before this piece
    records    BYTEA NOT NULL,   -- sealed: tokens
    PRIMARY KEY (stream_id, position)
);
