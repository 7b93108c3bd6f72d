-- What a host decides about a key beside its role, and what was written with it.
ALTER TABLE keys ADD COLUMN tokens_per_minute INTEGER NOT NULL DEFAULT 0;  -- 0: no limit
ALTER TABLE keys ADD COLUMN expires_s INTEGER NOT NULL DEFAULT 0;          -- 0: never
ALTER TABLE keys ADD COLUMN revoked_s INTEGER NOT NULL DEFAULT 0;          -- 0: it opens

-- One row for each key and UTC day. key_id: the first 8 hexadecimal digits of key_sha256, or
-- 'local' for requests without a key.
CREATE TABLE token_use (
    key_id         TEXT NOT NULL,
    day_s          INTEGER NOT NULL,
    requests       INTEGER NOT NULL,
    prompt_tokens  INTEGER NOT NULL,
    answer_tokens  INTEGER NOT NULL,
    PRIMARY KEY (key_id, day_s)
) WITHOUT ROWID;
