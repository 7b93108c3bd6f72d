-- How the hub did, one row for each minute in which it ran, kept for a week.
CREATE TABLE history (
    minute_s        INTEGER PRIMARY KEY NOT NULL,
    answer_tokens   INTEGER NOT NULL,
    answers         INTEGER NOT NULL,
    first_token_us  INTEGER NOT NULL,  -- the sum over `answers`
    call_p50_us     INTEGER NOT NULL,  -- of calls to workers; 0: there were none
    call_p99_us     INTEGER NOT NULL,
    workers         INTEGER NOT NULL,  -- the most that were active
    covered         INTEGER NOT NULL,  -- the fewest experts that somebody computed
    units           INTEGER NOT NULL
);
