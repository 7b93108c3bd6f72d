-- Tells this store from another one at the same address, or from a store that lost its tables.
CREATE TABLE store_identity (
    one  BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (one),
    id   TEXT NOT NULL DEFAULT gen_random_uuid()::text
);
INSERT INTO store_identity DEFAULT VALUES;
