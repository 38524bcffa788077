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

-- stream_head --
-- Fragment: CTE with the newest version of the stream, and the transaction_id of the events behind it.
--
-- A transaction gets its id with its first write. So one that began to write early can append behind an event of a later
-- transaction that has committed meanwhile: its events take over the larger id, because a stream is read in the order of
-- its versions. An id that is not below the snapshot's xmax is from an earlier epoch, or the caller's own.
head AS MATERIALIZED (
    SELECT coalesce(h.version, 0) AS version,
           greatest(pg_current_xact_id()::text::bigint,
                    CASE WHEN h.transaction_id < pg_snapshot_xmax(pg_current_snapshot())::text::bigint
                         THEN h.transaction_id END) AS transaction_id
      FROM (SELECT 1) AS always
      LEFT JOIN (SELECT version, transaction_id FROM :"schema".outbox_event WHERE stream = %(stream)s::text
                  ORDER BY version DESC LIMIT 1) AS h ON true)

-- append_events --
-- Append events to the log of their stream and to the outbox. The first row is the lock: only the session that inserted
-- version n + 1 can insert n + 2, so either all events are appended or none. No RETURNING on the outbox: a producer may
-- not read it. Where the caller chose the event_ids, nothing is appended if one of them is in the log already. Returns
-- the version that the statement saw, and whether the events were appended.
WITH :stream_head, events AS MATERIALIZED (
    SELECT %(stream)s::text AS stream, head.version + e.number AS version, head.transaction_id, e.*
      FROM head
     CROSS JOIN unnest(
           %(event_id)s::text[], %(event_type)s::text[], %(payload)s::bytea[], %(content_type)s::text[],
           %(content_encoding)s::text[], %(log_headers)s::text[], %(type_version)s::text[], %(headers)s::text[],
           %(exchange)s::text[], %(routing_key)s::text[]) WITH ORDINALITY AS e (
           event_id, event_type, payload, content_type, content_encoding, log_headers, type_version, headers,
           exchange, routing_key, number)
     WHERE (%(expected_version)s::text IS NULL OR head.version = %(expected_version)s::text::bigint)
       AND NOT EXISTS (SELECT 1 FROM :"schema".outbox_event AS k WHERE k.event_id = ANY(%(known_ids)s::text[]::uuid[]))
), first AS (
    INSERT INTO :"schema".outbox_event (:appended_columns)
    SELECT :appended_values FROM events AS e WHERE e.number = 1
    ON CONFLICT DO NOTHING
    RETURNING version
), rest AS (
    INSERT INTO :"schema".outbox_event (:appended_columns)
    SELECT :appended_values FROM first CROSS JOIN events AS e WHERE e.number > 1
     ORDER BY e.number
), enqueued AS (
    INSERT INTO :"schema".outbox (
        event_id, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload, content_type,
        content_encoding, headers, context)
    SELECT e.event_id::uuid, e.event_type, %(aggregate_type)s::text, %(aggregate_id)s::text, e.stream, e.exchange,
           e.routing_key, e.payload, e.content_type, e.content_encoding, (:stream_headers || :own_headers)::json,
           %(context)s::text::json
      FROM first CROSS JOIN events AS e
     ORDER BY e.number
)
SELECT head.version, EXISTS (SELECT 1 FROM first) FROM head;

-- append_event --
-- As append_events, for one event whose event_id is new: the statement takes two thirds of the time.
WITH :stream_head, first AS (
    INSERT INTO :"schema".outbox_event (:appended_columns)
    SELECT %(stream)s::text, head.version + 1, %(event_id)s::text::uuid, %(event_type)s::text, %(payload)s::bytea,
           %(content_type)s::text, %(content_encoding)s::text, %(log_headers)s::text::json,
           %(type_version)s::text::smallint, head.transaction_id
      FROM head
     WHERE %(expected_version)s::text IS NULL OR head.version = %(expected_version)s::text::bigint
    ON CONFLICT DO NOTHING
    RETURNING version
), enqueued AS (
    INSERT INTO :"schema".outbox (
        event_id, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload, content_type,
        content_encoding, headers, context)
    SELECT %(event_id)s::text::uuid, %(event_type)s::text, %(aggregate_type)s::text, %(aggregate_id)s::text,
           %(stream)s::text, %(exchange)s::text, %(routing_key)s::text, %(payload)s::bytea, %(content_type)s::text,
           %(content_encoding)s::text, (:stream_headers || :own_headers)::json, %(context)s::text::json
      FROM (SELECT %(stream)s::text AS stream, version, %(headers)s::text AS headers FROM first) AS e
)
SELECT head.version, EXISTS (SELECT 1 FROM first) FROM head;

-- appended_columns --
-- Fragment: the columns of an event that append_events writes. The database fills in epoch, position and created_at.
stream, version, event_id, event_type, payload, content_type, content_encoding, headers, type_version, transaction_id

-- appended_values --
-- Fragment: the values of appended_columns.
e.stream, e.version, e.event_id::uuid, e.event_type, e.payload, e.content_type, e.content_encoding,
e.log_headers::json, e.type_version::smallint, e.transaction_id

-- stream_version --
-- The newest version of a stream; 0 when it has no events.
SELECT coalesce(max(version), 0) FROM :"schema".outbox_event WHERE stream = %(stream)s::text;

-- stored_columns --
-- Fragment: an event of the log, in the order of the fields of outrider.producer.stored_event.
e.stream, e.version, e.event_id::text, e.event_type, e.payload, e.content_type, e.content_encoding, e.headers::text,
e.created_at, e.type_version, e.epoch, e.transaction_id, e.position

-- load_events --
-- The events of a stream between two versions, in order.
SELECT :stored_columns
  FROM :"schema".outbox_event AS e
 WHERE e.stream = %(stream)s::text AND e.version > %(after)s::text::bigint
   AND (%(before)s::text IS NULL OR e.version < %(before)s::text::bigint)
 ORDER BY e.version
 LIMIT %(limit)s::text::bigint;

-- load_events_backwards --
-- As load_events, the newest first.
SELECT :stored_columns
  FROM :"schema".outbox_event AS e
 WHERE e.stream = %(stream)s::text AND e.version > %(after)s::text::bigint
   AND (%(before)s::text IS NULL OR e.version < %(before)s::text::bigint)
 ORDER BY e.version DESC
 LIMIT %(limit)s::text::bigint;

-- events_by_id --
-- The events with these ids.
SELECT :stored_columns FROM :"schema".outbox_event AS e
 WHERE e.event_id = ANY(%(event_ids)s::text[]::uuid[])
 ORDER BY e.stream, e.version;

-- log_end --
-- Fragment: CTE with the end of the log: all events before (epoch, transaction_id) are visible, and none can appear there
-- any more, because no transaction with a smaller id is running. An earlier epoch has ended. `restored` is true if the
-- log holds ids that this server has not given out: it was restored here, and needs a new epoch.
log_end AS MATERIALIZED (
    SELECT c.epoch, pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS transaction_id,
           EXISTS (SELECT 1 FROM :"schema".outbox_event AS f
                    WHERE f.epoch = c.epoch
                      AND f.transaction_id >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
                      AND f.transaction_id IS DISTINCT FROM pg_current_xact_id_if_assigned()::text::bigint) AS restored
      FROM (SELECT max(epoch) AS epoch FROM :"schema".outbox_epoch) AS c
)

-- log_ranges --
-- Fragment: CTE behind log_end with what is to be read of each epoch from the position of the reader on. One range scan for
-- each epoch, with plain conditions on the index: before PostgreSQL 18 a scan does not stop at a comparison of rows.
ranges AS MATERIALIZED (
    SELECT p.epoch,
           CASE p.epoch WHEN %(after_epoch)s::text::integer THEN %(after_transaction)s::text::bigint ELSE 0 END
               AS after_transaction,
           CASE p.epoch WHEN %(after_epoch)s::text::integer THEN %(after_number)s::text::bigint ELSE 0 END
               AS after_number,
           CASE p.epoch WHEN log_end.epoch THEN log_end.transaction_id ELSE 9223372036854775807 END
               AS before_transaction
      FROM log_end
     CROSS JOIN (SELECT 0 AS epoch UNION ALL SELECT epoch FROM :"schema".outbox_epoch) AS p
     WHERE p.epoch >= %(after_epoch)s::text::integer
)

-- readable --
-- Fragment: the events `r` of a range.
r.epoch = ranges.epoch AND r.transaction_id < ranges.before_transaction
AND (r.transaction_id, r.position) > (ranges.after_transaction, ranges.after_number)
AND (%(event_types)s::text[] IS NULL OR r.event_type LIKE ANY(%(event_types)s::text[]))

-- read_events --
-- The events of the log after a position, in order, each with the end of the log; one row without an event if there are
-- none.
WITH :log_end, :log_ranges
SELECT log_end.epoch, log_end.transaction_id, log_end.restored, :stored_columns
  FROM log_end
  LEFT JOIN LATERAL (
       SELECT m.* FROM ranges
        CROSS JOIN LATERAL (
              SELECT r.* FROM :"schema".outbox_event AS r
               WHERE :readable
               ORDER BY r.epoch, r.transaction_id, r.position
               LIMIT %(limit)s::text::bigint) AS m
        ORDER BY m.epoch, m.transaction_id, m.position
        LIMIT %(limit)s::text::bigint) AS e ON true
 ORDER BY e.epoch, e.transaction_id, e.position;

-- read_category_events --
-- As read_events, of the streams of some categories: from each as many events as are wanted, by the index, then merged.
WITH :log_end, :log_ranges
SELECT log_end.epoch, log_end.transaction_id, log_end.restored, :stored_columns
  FROM log_end
  LEFT JOIN LATERAL (
       SELECT m.* FROM ranges CROSS JOIN unnest(%(categories)s::text[]) AS c (category)
        CROSS JOIN LATERAL (
              SELECT r.* FROM :"schema".outbox_event AS r
               WHERE split_part(r.stream, ':', 1) = c.category AND :readable
               ORDER BY r.epoch, r.transaction_id, r.position
               LIMIT %(limit)s::text::bigint) AS m
        ORDER BY m.epoch, m.transaction_id, m.position
        LIMIT %(limit)s::text::bigint) AS e ON true
 ORDER BY e.epoch, e.transaction_id, e.position;

-- replay_events --
-- Enqueue events of the log again, in one statement.
:replayed_event
  FROM (SELECT stream, version, event_id, event_type, payload, content_type, content_encoding, type_version,
               headers::text AS headers, created_at
          FROM :"schema".outbox_event AS e
         WHERE :log_selected) AS e
 ORDER BY :log_order;

-- save_snapshot --
-- Replace the snapshot of a stream, unless there is one of a later version. Returns a row if it was saved.
INSERT INTO :"schema".outbox_snapshot AS s (
    stream, version, snapshot_type, type_version, payload, content_type, content_encoding)
VALUES (%(stream)s::text, %(version)s::text::bigint, %(snapshot_type)s::text, %(type_version)s::text::smallint,
        %(payload)s::bytea, %(content_type)s::text, %(content_encoding)s::text)
ON CONFLICT (stream) DO UPDATE
   SET version = excluded.version, snapshot_type = excluded.snapshot_type, type_version = excluded.type_version,
       payload = excluded.payload, content_type = excluded.content_type, content_encoding = excluded.content_encoding,
       created_at = clock_timestamp()
 WHERE s.version <= excluded.version
RETURNING 1;

-- load_snapshot --
-- The newest snapshot of a stream.
SELECT version, snapshot_type, type_version, payload, content_type, content_encoding, created_at
  FROM :"schema".outbox_snapshot
 WHERE stream = %(stream)s::text;

-- subject_keys --
-- The keys of subjects; null where the subject was forgotten.
SELECT subject, key FROM :"schema".outbox_subject_key WHERE subject = ANY(%(subjects)s::text[]);

-- add_subject_keys --
-- Give keys to subjects that have none.
INSERT INTO :"schema".outbox_subject_key (subject, key)
SELECT * FROM unnest(%(subjects)s::text[], %(keys)s::bytea[])
ON CONFLICT DO NOTHING
RETURNING subject;

-- drain --
-- For tests of applications: delete all messages and return them in order, whatever their owner.
WITH gone AS (DELETE FROM :"schema".outbox RETURNING *)
SELECT :message_columns FROM gone AS o ORDER BY o.id;
