-- The demo's business table. It has nothing to do with messages.
CREATE TABLE shop_order (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer    text        NOT NULL,
    total_cents integer     NOT NULL,
    placed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
