-- What the workers of a hub hold. A hub of an earlier version writes no numbers: 0 units are not known.
ALTER TABLE hubs
    ADD COLUMN units    BIGINT NOT NULL DEFAULT 0,  -- (layer, expert) units that workers shall hold
    ADD COLUMN missing  BIGINT NOT NULL DEFAULT 0,  -- units that no worker has ready
    ADD COLUMN thin     BIGINT NOT NULL DEFAULT 0;  -- other units, with fewer copies than wanted
