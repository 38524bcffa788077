-- The complete schema of an outbox. `outrider setup` creates it by running migrations/; a test shows that both give the
-- same tables. To apply it by hand:
--     psql -v schema=public -f sql/schema.sql
-- A database can hold several outboxes, in different schemas.

CREATE SCHEMA IF NOT EXISTS :"schema";

-- ---------------------------------------------------------------------------------------------------------------------
-- outbox: the messages that are not delivered yet. A delivered message's row is deleted.
--
-- next_attempt_at  the time from which the scheduler may claim the row; until then (less a margin) the relay sends it.
--                  'infinity': the row is parked behind the head of its ordering key.
-- owner            'relay' until the first failure, hand-over or claim; from then on 'scheduler'. A delayed message
--                  belongs to the scheduler from the start.
-- claimed_by       the claim of one scheduler; only statements that name this claim change the row.
--
-- json, not jsonb: headers are written once and read once, as text, and must be read exactly as they were written (key
-- order, spelling of numbers, escaped NUL).
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
    -- Python has no other years, and subtracting an infinite time is an error. Only next_attempt_at can be 'infinity':
    -- parked.
    CONSTRAINT "times must lie in the years 1 to 9999"       CHECK (
        created_at >= '0001-01-01 00:00+00' AND created_at < '10000-01-01 00:00+00' AND
        expires_at >= '0001-01-01 00:00+00' AND expires_at < '10000-01-01 00:00+00' AND
        next_attempt_at >= '0001-01-01 00:00+00'),
    CONSTRAINT "owner must be relay or scheduler"            CHECK (owner IN ('relay', 'scheduler')),
    -- unpark_heads makes parked rows due again by their keys.
    CONSTRAINT "only a row with an ordering_key can be parked"
        CHECK (ordering_key IS NOT NULL OR next_attempt_at < 'infinity')
) WITH (
    -- Most rows are inserted and deleted, never updated. An update changes next_attempt_at, which is indexed, so it
    -- cannot be HOT: free space on pages would not help.
    fillfactor = 100,
    -- The table is small and its rows change all the time: vacuum after a number of rows, not a share of the table, and
    -- without delay.
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

-- claim_due, next_due: due rows, the longest overdue first.
CREATE INDEX outbox_due ON :"schema".outbox (next_attempt_at);
-- claim_due, settle, bury, keys_in_table, free_keys: the rows of one key in order.
CREATE INDEX outbox_key_order ON :"schema".outbox (ordering_key, id) WHERE ordering_key IS NOT NULL;
-- unpark_heads: parked rows. Without failures there are none.
CREATE INDEX outbox_parked ON :"schema".outbox (ordering_key, id) WHERE next_attempt_at = 'infinity';
-- expire: messages that can expire.
CREATE INDEX outbox_expiry ON :"schema".outbox (expires_at) WHERE expires_at IS NOT NULL;
-- watch_failed: failed rows by the time of the failure. New rows are not in it.
CREATE INDEX outbox_failed ON :"schema".outbox (last_failed_at, id) WHERE last_failed_at IS NOT NULL;
-- enqueue: at most one pending message per dedup_key.
CREATE UNIQUE INDEX outbox_dedup ON :"schema".outbox (dedup_key) WHERE dedup_key IS NOT NULL;

-- ---------------------------------------------------------------------------------------------------------------------
-- outbox_dead_letter: buried messages with their content and the reason. A replay moves them back into the outbox.
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
-- prune_dead_letters deletes the oldest first; `outrider dead list` shows the newest first.
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
-- outbox_event: the append-only log of event streams. The primary key is the optimistic lock. Nothing deletes events
-- but `outrider events delete`.
--
-- The order of the log is (epoch, transaction_id, position): see docs/event-sourcing.md.
-- epoch            counts the servers on which the log has been written; the column's default is the current one. Epoch 0
--                  holds the events from before migration 4.
-- transaction_id   at least the id of the transaction that appended the event, and of the one before it in its stream:
--                  once no transaction up to this id is running, no event can appear before it. bigint, because
--                  drivers and ORMs do not know xid8.
-- position         the order of events with the same transaction_id
-- type_version     the version of the schema of the event's payload
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
    epoch            integer     NOT NULL DEFAULT 1,
    transaction_id   bigint      NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    position         bigint      GENERATED BY DEFAULT AS IDENTITY,
    type_version     smallint    NOT NULL DEFAULT 1,
    PRIMARY KEY (stream, version),
    CONSTRAINT "stream must be 1 to 1000 bytes"  CHECK (octet_length(stream) BETWEEN 1 AND 1000),
    CONSTRAINT "version must start at 1"         CHECK (version >= 1)
);
-- replay by time, delete_events.
CREATE INDEX outbox_event_created_at ON :"schema".outbox_event (created_at);
-- append_events: an event is in the log once.
CREATE UNIQUE INDEX outbox_event_event_id ON :"schema".outbox_event (event_id);
-- read_events, read_category_events: the log in order; the category of a stream is its name up to the first colon.
CREATE INDEX outbox_event_order ON :"schema".outbox_event (epoch, transaction_id, position);
CREATE INDEX outbox_event_category
    ON :"schema".outbox_event (split_part(stream, ':', 1), epoch, transaction_id, position);

-- ---------------------------------------------------------------------------------------------------------------------
-- outbox_epoch: the epochs of the log, and the server on which each began. Transaction ids of one server grow; those of
-- a server into which the log was restored may be smaller, so it needs a new epoch (`outrider events new-epoch`).
CREATE TABLE :"schema".outbox_epoch (
    epoch             integer     PRIMARY KEY,
    system_identifier text        NOT NULL,
    started_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO :"schema".outbox_epoch (epoch, system_identifier) SELECT 1, system_identifier FROM pg_control_system();

-- ---------------------------------------------------------------------------------------------------------------------
-- outbox_snapshot: the newest snapshot of a stream. A snapshot can be deleted at any time: it is made from events.
CREATE TABLE :"schema".outbox_snapshot (
    stream           text        PRIMARY KEY,
    version          bigint      NOT NULL,
    snapshot_type    text        NOT NULL,
    type_version     smallint    NOT NULL DEFAULT 1,
    payload          bytea       NOT NULL,
    content_type     text        NOT NULL,
    content_encoding text        NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- ---------------------------------------------------------------------------------------------------------------------
-- outbox_subject_key: the keys with which payloads of a subject (usually a person) are encrypted. Without its key, a
-- payload can never be read again: key is null once the subject was forgotten.
CREATE TABLE :"schema".outbox_subject_key (
    subject          text        PRIMARY KEY,
    key              bytea,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    forgotten_at     timestamptz
);

-- ---------------------------------------------------------------------------------------------------------------------
-- outbox_inbox: the events that a consumer has processed. The row is written in the transaction of the event's effects,
-- so that both are committed or neither. event_id is text: message ids and Celery task ids are usually UUIDs, but a
-- sender may choose other ids.
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
-- outbox_worker: the presence of services. Each refreshes its own row; a row that is not refreshed belongs to a service
-- that was killed.
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
-- outbox_migration: the migrations that this schema has.
CREATE TABLE :"schema".outbox_migration (
    version          integer     PRIMARY KEY,
    name             text        NOT NULL,
    applied_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO :"schema".outbox_migration (version, name) VALUES
    (1, 'initial'), (2, 'parked_rows_need_a_key'), (3, 'failed_rows'), (4, 'event_order');
