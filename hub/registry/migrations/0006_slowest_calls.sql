-- The time within which 999 of 1,000 calls to workers end.
ALTER TABLE history ADD COLUMN call_p999_us INTEGER NOT NULL DEFAULT 0;
