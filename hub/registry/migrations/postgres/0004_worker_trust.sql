-- The record of a worker's answers, which follows the worker to another hub. The first three counts
-- are those since the worker was last suspected.
CREATE TABLE worker_trust (
    worker_key          TEXT PRIMARY KEY,
    rows_answered       BIGINT NOT NULL,
    rows_verified       BIGINT NOT NULL,
    answers_verified    BIGINT NOT NULL,
    rows_verified_ever  BIGINT NOT NULL,
    lies                BIGINT NOT NULL,
    times_suspected     BIGINT NOT NULL,
    suspected           BIGINT NOT NULL,  -- 1: since its last lie, the worker was not proven again
    lied_s              BIGINT NOT NULL,  -- 0: never
    seen_s              BIGINT NOT NULL
);
CREATE INDEX worker_trust_by_last_seen ON worker_trust (seen_s);
