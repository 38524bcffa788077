-- Run by applications, in their own transaction (outrider.producer): messages and event streams. They need no privilege
-- on the outbox but INSERT. Only drain, for tests of applications, reads and deletes.

-- enqueued_columns --
-- Fragment: the columns that a producer writes. The database fills in the others: id, created_at, next_attempt_at, ...
event_id, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload, content_type,
content_encoding, headers, properties, declarations, context, dedup_key, expires_at

-- copied_columns --
-- Fragment: the columns that enqueue_copy writes beside the event_id: those of enqueued_columns that are text, JSON or
-- bytes. The binary form of these types, and of NULL, is the same on every server.
event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload, content_type,
content_encoding, headers, properties, declarations, context

-- enqueued_values --
-- Fragment: the values of one message. Every parameter but the payload is cast from text, so that no driver's own
-- handling of json or uuid matters.
%(event_id)s::text::uuid, %(event_type)s::text, %(aggregate_type)s::text, %(aggregate_id)s::text,
%(ordering_key)s::text, %(exchange)s::text, %(routing_key)s::text, %(payload)s::bytea, %(content_type)s::text,
%(content_encoding)s::text, %(headers)s::text::json, %(properties)s::text::json, %(declarations)s::text::json,
%(context)s::text::json, %(dedup_key)s::text,
coalesce(%(expires_at)s::text::timestamptz,
         clock_timestamp() + %(expires_in_seconds)s::text::float8 * interval '1 second')

-- enqueued_rows --
-- Fragment: the values of many messages, as arrays. A column with one value for all messages is sent once, as
-- first_...; a column that is null for all is an empty array, because unnest fills short arrays with nulls. WITH
-- ORDINALITY, because rows of a key must get their ids in the order given.
SELECT e.event_id::uuid, coalesce(e.event_type, %(first_event_type)s::text), e.aggregate_type, e.aggregate_id,
       e.ordering_key, coalesce(e.exchange, %(first_exchange)s::text),
       coalesce(e.routing_key, %(first_routing_key)s::text), e.payload,
       coalesce(e.content_type, %(first_content_type)s::text),
       coalesce(e.content_encoding, %(first_content_encoding)s::text),
       coalesce(e.headers, %(first_headers)s::text)::json, coalesce(e.properties, %(first_properties)s::text)::json,
       e.declarations::json, e.context::json, e.dedup_key,
       coalesce(e.expires_at::timestamptz,
                clock_timestamp() + e.expires_in_seconds::float8 * interval '1 second')

-- enqueued_unnest --
-- Fragment: the arrays of enqueued_rows.
unnest(%(event_id)s::text[], %(event_type)s::text[], %(aggregate_type)s::text[], %(aggregate_id)s::text[],
       %(ordering_key)s::text[], %(exchange)s::text[], %(routing_key)s::text[], %(payload)s::bytea[],
       %(content_type)s::text[], %(content_encoding)s::text[], %(headers)s::text[], %(properties)s::text[],
       %(declarations)s::text[], %(context)s::text[], %(dedup_key)s::text[], %(expires_at)s::text[],
       %(expires_in_seconds)s::text[], %(deliver_at)s::text[], %(deliver_in_seconds)s::text[])
    WITH ORDINALITY AS e (
       event_id, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload,
       content_type, content_encoding, headers, properties, declarations, context, dedup_key, expires_at,
       expires_in_seconds, deliver_at, deliver_in_seconds, position)

-- enqueue --
-- Insert a message. No RETURNING: a role that may only INSERT can run it.
INSERT INTO :"schema".outbox (:enqueued_columns)
VALUES (:enqueued_values);

-- enqueue_plain --
-- As enqueue, for a message that has only the columns of a task: fewer values cost the driver and the server less time.
INSERT INTO :"schema".outbox (
    event_id, event_type, exchange, routing_key, payload, content_type, content_encoding, headers, properties,
    declarations)
VALUES (%(event_id)s::text::uuid, %(event_type)s::text, %(exchange)s::text, %(routing_key)s::text, %(payload)s::bytea,
        %(content_type)s::text, %(content_encoding)s::text, %(headers)s::text::json, %(properties)s::text::json,
        %(declarations)s::text::json);

-- enqueue_once --
-- As enqueue, for a message with a dedup_key: while a message with the same key is pending, nothing is written and the
-- row count is 0. No conflict target: that would need the SELECT privilege.
INSERT INTO :"schema".outbox (:enqueued_columns)
VALUES (:enqueued_values)
ON CONFLICT DO NOTHING;

-- may_read_waiting_task --
-- Whether the current role may run waiting_task: a producer needs only INSERT for everything else.
SELECT bool_and(has_column_privilege(current_user, c.oid, read.name, 'SELECT'))
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 CROSS JOIN (VALUES ('dedup_key'), ('event_id'), ('properties')) AS read (name)
 WHERE n.nspname = :'schema' AND c.relname = 'outbox';

-- waiting_task --
-- The message that holds a dedup_key. No row: it has just been delivered, or its transaction was rolled back.
SELECT event_id::text, properties::text FROM :"schema".outbox WHERE dedup_key = %(dedup_key)s::text;

-- enqueue_delayed --
-- As enqueue_once, for a delayed message: it belongs to the scheduler from the start.
INSERT INTO :"schema".outbox (:enqueued_columns, owner, next_attempt_at)
VALUES (:enqueued_values,
        'scheduler',
        coalesce(%(deliver_at)s::text::timestamptz,
                 clock_timestamp() + %(deliver_in_seconds)s::text::float8 * interval '1 second'))
ON CONFLICT DO NOTHING;

-- enqueue_many --
-- As enqueue_once, for any number of messages in one round trip.
INSERT INTO :"schema".outbox (:enqueued_columns)
:enqueued_rows
  FROM :enqueued_unnest
 ORDER BY e.position
ON CONFLICT DO NOTHING;

-- enqueue_many_delayed --
-- As enqueue_delayed, for any number of messages in one round trip.
INSERT INTO :"schema".outbox (:enqueued_columns, owner, next_attempt_at)
:enqueued_rows,
       'scheduler',
       coalesce(e.deliver_at::timestamptz,
                clock_timestamp() + e.deliver_in_seconds::float8 * interval '1 second')
  FROM :enqueued_unnest
 ORDER BY e.position
ON CONFLICT DO NOTHING;

-- enqueue_copy --
-- As enqueue_many, and faster, for messages without delay, dedup_key and expiry: COPY evaluates no expressions and has
-- no ON CONFLICT. The binary format needs no escaping and no hexadecimal digits.
COPY :"schema".outbox (event_id, :copied_columns) FROM STDIN (FORMAT BINARY);

-- append_events --
-- Append events to the log of their stream and to the outbox. The first row is the lock: only the session that inserted
-- version n + 1 can insert n + 2, so either all events are appended or none. No RETURNING on the outbox: a producer may
-- not read it. Returns the version that the statement saw, and whether the events were appended.
WITH head AS MATERIALIZED (
    SELECT coalesce(max(version), 0) AS version FROM :"schema".outbox_event WHERE stream = %(stream)s::text
), events AS MATERIALIZED (
    SELECT %(stream)s::text AS stream, head.version + e.position AS version, e.*
      FROM head
     CROSS JOIN unnest(
           %(event_id)s::text[], %(event_type)s::text[], %(payload)s::bytea[], %(content_type)s::text[],
           %(content_encoding)s::text[], %(log_headers)s::text[], %(headers)s::text[], %(exchange)s::text[],
           %(routing_key)s::text[]) WITH ORDINALITY AS e (
           event_id, event_type, payload, content_type, content_encoding, log_headers, headers, exchange, routing_key,
           position)
     WHERE %(expected_version)s::text IS NULL OR head.version = %(expected_version)s::text::bigint
), first AS (
    INSERT INTO :"schema".outbox_event (
        stream, version, event_id, event_type, payload, content_type, content_encoding, headers)
    SELECT stream, version, event_id::uuid, event_type, payload, content_type, content_encoding, log_headers::json
      FROM events WHERE position = 1
    ON CONFLICT (stream, version) DO NOTHING
    RETURNING version
), rest AS (
    INSERT INTO :"schema".outbox_event (
        stream, version, event_id, event_type, payload, content_type, content_encoding, headers)
    SELECT e.stream, e.version, e.event_id::uuid, e.event_type, e.payload, e.content_type, e.content_encoding,
           e.log_headers::json
      FROM first CROSS JOIN events AS e WHERE e.position > 1
), enqueued AS (
    INSERT INTO :"schema".outbox (
        event_id, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload, content_type,
        content_encoding, headers, context)
    SELECT e.event_id::uuid, e.event_type, %(aggregate_type)s::text, %(aggregate_id)s::text, e.stream, e.exchange,
           e.routing_key, e.payload, e.content_type, e.content_encoding, (:stream_headers || :own_headers)::json,
           %(context)s::text::json
      FROM first CROSS JOIN events AS e
     ORDER BY e.position
)
SELECT head.version, EXISTS (SELECT 1 FROM first) FROM head;

-- stream_version --
-- The newest version of a stream; 0 when it has no events.
SELECT coalesce(max(version), 0) FROM :"schema".outbox_event WHERE stream = %(stream)s::text;

-- load_events --
-- The events of a stream after a version, in order.
SELECT stream, version, event_id::text, event_type, payload, content_type, content_encoding, headers::text, created_at
  FROM :"schema".outbox_event
 WHERE stream = %(stream)s::text AND version > %(after)s::text::bigint
 ORDER BY version
 LIMIT %(limit)s::text::bigint;

-- replay_events --
-- Enqueue events of the log again, in one statement.
:replayed_event
  FROM (SELECT stream, version, event_id, event_type, payload, content_type, content_encoding,
               headers::text AS headers, created_at
          FROM :"schema".outbox_event AS e
         WHERE :log_selected) AS e
 ORDER BY :log_order;

-- drain --
-- For tests of applications: delete all messages and return them in order, whatever their owner.
WITH gone AS (DELETE FROM :"schema".outbox RETURNING *)
SELECT :message_columns FROM gone AS o ORDER BY o.id;
