-- The whole schema of an outbox, as one picture. `outrider setup` gets here by replaying migrations/; a test shows that
-- both give the same database. To apply it by hand:
--     psql -v schema=public -f sql/schema.sql
-- Several outboxes share a database by living in different schemas.

CREATE SCHEMA IF NOT EXISTS :"schema";

-- ---------------------------------------------------------------------------------------------------------------------
-- outbox: the truth. A row that is here has not been delivered; a row that is gone has been.
--
-- next_attempt_at  the time from which the scheduler may take the row; until then (less a margin) it is the relay's.
--                  'infinity' parks an ordered row behind the head of its key.
-- owner            'relay' until the first failure, hand-over or claim; then 'scheduler' for good. A delayed message
--                  is the scheduler's from the start.
-- claimed_by       the claim of one scheduler; a settle must name it.
--
-- json, not jsonb: headers are written once and read once, as text, and must come out as they went in (key order,
-- number spelling, escaped NUL).
CREATE TABLE :"schema".outbox (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id         uuid        NOT NULL DEFAULT gen_random_uuid(),
    schema_version   smallint    NOT NULL DEFAULT 1,
    event_type       text        NOT NULL,
    aggregate_type   text,
    aggregate_id     text,
    ordering_key     text,
    exchange         text        NOT NULL DEFAULT '',
    routing_key      text        NOT NULL,
    payload          bytea       NOT NULL,
    content_type     text        NOT NULL DEFAULT 'application/json',
    content_encoding text        NOT NULL DEFAULT 'utf-8',
    headers          json        NOT NULL DEFAULT '{}',
    properties       json        NOT NULL DEFAULT '{}',
    declarations     json,
    context          json,
    dedup_key        text,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at       timestamptz,
    next_attempt_at  timestamptz NOT NULL DEFAULT clock_timestamp() + interval '30 seconds',
    attempts         integer     NOT NULL DEFAULT 0,
    owner            text        NOT NULL DEFAULT 'relay',
    claimed_by       text,
    last_error       text,
    last_failed_at   timestamptz,
    CONSTRAINT "event_type must not be empty"                CHECK (event_type <> ''),
    CONSTRAINT "routing_key must be at most 255 bytes"       CHECK (octet_length(routing_key) <= 255),
    CONSTRAINT "exchange must be at most 255 bytes"          CHECK (octet_length(exchange) <= 255),
    CONSTRAINT "ordering_key must be 1 to 1000 bytes"        CHECK (octet_length(ordering_key) BETWEEN 1 AND 1000),
    CONSTRAINT "dedup_key must be 1 to 1000 bytes"           CHECK (octet_length(dedup_key) BETWEEN 1 AND 1000),
    CONSTRAINT "headers must be a JSON object"               CHECK (json_typeof(headers) = 'object'),
    CONSTRAINT "properties must be a JSON object"            CHECK (json_typeof(properties) = 'object'),
    CONSTRAINT "declarations must be a JSON array"           CHECK (json_typeof(declarations) = 'array'),
    CONSTRAINT "context must be a JSON object"               CHECK (json_typeof(context) = 'object'),
    CONSTRAINT "attempts must not be negative"               CHECK (attempts >= 0),
    -- Python has no other years, and an infinite time would end every query that subtracts it. Only next_attempt_at can
    -- be infinitely far: parked.
    CONSTRAINT "times must lie in the years 1 to 9999"       CHECK (
        created_at >= '0001-01-01 00:00+00' AND created_at < '10000-01-01 00:00+00' AND
        expires_at >= '0001-01-01 00:00+00' AND expires_at < '10000-01-01 00:00+00' AND
        next_attempt_at >= '0001-01-01 00:00+00'),
    CONSTRAINT "owner must be relay or scheduler"            CHECK (owner IN ('relay', 'scheduler'))
) WITH (
    -- Most rows are inserted and deleted, never updated, and an update moves next_attempt_at, which is indexed, so it
    -- cannot be HOT: free space kept on pages would buy nothing.
    fillfactor = 100,
    -- A queue table is nearly empty and turns over all day: vacuum by count, not by a share of its size, at full speed.
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.0,
    autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0.0,
    autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0.0,
    toast.autovacuum_vacuum_threshold = 5000,
    toast.autovacuum_vacuum_cost_delay = 0
);

-- claim_due, next_due: what is due, oldest first.
CREATE INDEX outbox_due ON :"schema".outbox (next_attempt_at);
-- claim_due, settle, bury, keys_in_table, free_keys: the rows of one key in order.
CREATE INDEX outbox_key_order ON :"schema".outbox (ordering_key, id) WHERE ordering_key IS NOT NULL;
-- unpark_heads: rows that wait behind the head of their key. A healthy outbox has none.
CREATE INDEX outbox_parked ON :"schema".outbox (ordering_key, id) WHERE next_attempt_at = 'infinity';
-- expire: messages that can expire.
CREATE INDEX outbox_expiry ON :"schema".outbox (expires_at) WHERE expires_at IS NOT NULL;
-- enqueue: at most one pending message per dedup_key.
CREATE UNIQUE INDEX outbox_dedup ON :"schema".outbox (dedup_key) WHERE dedup_key IS NOT NULL;

-- ---------------------------------------------------------------------------------------------------------------------
-- outbox_dead_letter: messages that were given up, whole, with the reason. Replay puts them back.
CREATE TABLE :"schema".outbox_dead_letter (
    id               bigint      PRIMARY KEY,
    event_id         uuid        NOT NULL,
    schema_version   smallint    NOT NULL,
    event_type       text        NOT NULL,
    aggregate_type   text,
    aggregate_id     text,
    ordering_key     text,
    exchange         text        NOT NULL,
    routing_key      text        NOT NULL,
    payload          bytea       NOT NULL,
    content_type     text        NOT NULL,
    content_encoding text        NOT NULL,
    headers          json        NOT NULL,
    properties       json        NOT NULL,
    declarations     json,
    context          json,
    dedup_key        text,
    created_at       timestamptz NOT NULL,
    expires_at       timestamptz,
    attempts         integer     NOT NULL,
    last_error       text,
    last_failed_at   timestamptz,
    reason           text        NOT NULL,
    died_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT "reason must be max attempts, expired, rejected or undecodable"
        CHECK (reason IN ('max attempts', 'expired', 'rejected', 'undecodable'))
);
-- prune_dead_letters, dead list: newest first, oldest pruned.
CREATE INDEX outbox_dead_letter_died_at ON :"schema".outbox_dead_letter (died_at);

-- ---------------------------------------------------------------------------------------------------------------------
-- outbox_archive: delivered messages, kept for as long as the retention setting says (off by default).
CREATE TABLE :"schema".outbox_archive (
    id               bigint      PRIMARY KEY,
    event_id         uuid        NOT NULL,
    schema_version   smallint    NOT NULL,
    event_type       text        NOT NULL,
    aggregate_type   text,
    aggregate_id     text,
    ordering_key     text,
    exchange         text        NOT NULL,
    routing_key      text        NOT NULL,
    payload          bytea       NOT NULL,
    content_type     text        NOT NULL,
    content_encoding text        NOT NULL,
    headers          json        NOT NULL,
    properties       json        NOT NULL,
    declarations     json,
    context          json,
    created_at       timestamptz NOT NULL,
    attempts         integer     NOT NULL,
    delivered_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- prune_archive, replay by time.
CREATE INDEX outbox_archive_delivered_at ON :"schema".outbox_archive (delivered_at);

-- ---------------------------------------------------------------------------------------------------------------------
-- outbox_event: the append-only log of event streams. The primary key is the optimistic lock.
CREATE TABLE :"schema".outbox_event (
    stream           text        NOT NULL,
    version          bigint      NOT NULL,
    event_id         uuid        NOT NULL,
    event_type       text        NOT NULL,
    payload          bytea       NOT NULL,
    content_type     text        NOT NULL DEFAULT 'application/json',
    content_encoding text        NOT NULL DEFAULT 'utf-8',
    headers          json        NOT NULL DEFAULT '{}',
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (stream, version),
    CONSTRAINT "stream must be 1 to 1000 bytes"  CHECK (octet_length(stream) BETWEEN 1 AND 1000),
    CONSTRAINT "version must start at 1"         CHECK (version >= 1)
);
-- replay by time, prune_events.
CREATE INDEX outbox_event_created_at ON :"schema".outbox_event (created_at);

-- ---------------------------------------------------------------------------------------------------------------------
-- outbox_inbox: which events a consumer has processed. The row is written in the transaction of the event's effects, so
-- that both are there or neither is. event_id is text: a message_id or a Celery task id is a UUID as a rule, but whoever
-- sends it may choose another.
CREATE TABLE :"schema".outbox_inbox (
    consumer         text        NOT NULL,
    event_id         text        NOT NULL,
    processed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, event_id),
    CONSTRAINT "consumer must be 1 to 255 bytes"  CHECK (octet_length(consumer) BETWEEN 1 AND 255),
    CONSTRAINT "event_id must be 1 to 1000 bytes" CHECK (octet_length(event_id) BETWEEN 1 AND 1000)
);
-- prune_inbox: oldest first.
CREATE INDEX outbox_inbox_processed_at ON :"schema".outbox_inbox (processed_at);

-- ---------------------------------------------------------------------------------------------------------------------
-- outbox_worker: which services live. Each writes its own row; one that stops being seen is gone.
CREATE TABLE :"schema".outbox_worker (
    kind             text        NOT NULL,
    name             text        NOT NULL,
    role             text        NOT NULL,
    version          text        NOT NULL,
    host             text        NOT NULL,
    pid              integer     NOT NULL,
    started_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, name),
    CONSTRAINT "kind must be relay, scheduler or worker" CHECK (kind IN ('relay', 'scheduler', 'worker')),
    CONSTRAINT "role must be active or standby"          CHECK (role IN ('active', 'standby'))
) WITH (fillfactor = 50);  -- a few rows, updated every few seconds: HOT within their page

-- ---------------------------------------------------------------------------------------------------------------------
-- outbox_migration: which migrations this schema has.
CREATE TABLE :"schema".outbox_migration (
    version          integer     PRIMARY KEY,
    name             text        NOT NULL,
    applied_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO :"schema".outbox_migration (version, name) VALUES (1, 'initial');
