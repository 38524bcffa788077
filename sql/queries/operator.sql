-- Run by the commands of `outrider`, by the Django admin and by Django's management commands
-- (outrider/storage/operator_queries.py): pending messages, dead letters, replay, a message enqueued by hand.

-- pending_selected --
-- Fragment: a filter for messages of the outbox. A condition that is null or false is not applied.
((%(ids)s::bigint[] IS NULL AND %(event_ids)s::text[] IS NULL)
 OR o.id = ANY(%(ids)s::bigint[]) OR o.event_id = ANY(%(event_ids)s::text[]::uuid[]))
AND (%(event_type)s::text IS NULL OR o.event_type LIKE %(event_type)s::text)
AND (%(ordering_key)s::text IS NULL OR o.ordering_key = %(ordering_key)s::text)
AND (%(owner)s::text IS NULL OR o.owner = %(owner)s::text)
AND (%(older_than)s::interval IS NULL OR o.created_at < statement_timestamp() - %(older_than)s::interval)
AND (%(newer_than)s::interval IS NULL OR o.created_at >= statement_timestamp() - %(newer_than)s::interval)
AND (NOT %(due)s::boolean OR o.next_attempt_at <= statement_timestamp())
AND (NOT %(failed)s::boolean OR o.last_failed_at IS NOT NULL)

-- behind_head --
-- Fragment: an earlier message of the same key is in the outbox.
(o.ordering_key IS NOT NULL AND EXISTS (
    SELECT 1 FROM :"schema".outbox AS head WHERE head.ordering_key = o.ordering_key AND head.id < o.id))

-- pending_columns --
-- Fragment: a pending message without its content. A row whose lease has ended is due. A parked row has no next
-- attempt: Python has no infinite datetime. A row in an unknown format is never sent.
o.id, o.event_id::text, o.event_type, o.ordering_key, o.exchange, o.routing_key, o.attempts, o.owner,
CASE WHEN NOT :supported_version THEN 'unsupported'
     WHEN o.next_attempt_at = 'infinity' THEN 'parked'
     WHEN o.next_attempt_at <= statement_timestamp() THEN 'due'
     WHEN o.claimed_by IS NOT NULL THEN 'claimed'
     WHEN o.owner = 'relay' THEN 'relay'
     ELSE 'waiting' END,
:behind_head, CASE WHEN isfinite(o.next_attempt_at) THEN o.next_attempt_at END, o.claimed_by, o.last_error, o.created_at

-- content_columns --
-- Fragment: the content of a stored message, in the order of the fields of outrider.operations.stored_content. JSON is
-- text.
schema_version, aggregate_type, aggregate_id, payload, content_type, content_encoding, headers::text, properties::text,
declarations::text, context::text, dedup_key, expires_at, last_failed_at

-- pending_messages --
-- One batch of a walk over pending messages, the oldest first.
SELECT :pending_columns FROM :"schema".outbox AS o
 WHERE o.id > %(after)s AND o.id <= %(up_to)s AND :pending_selected
 ORDER BY o.id
 LIMIT %(batch_size)s;

-- pending_message --
-- One pending message with its content. An event_id can be pending twice (after a replay): the newest one.
SELECT :pending_columns, :content_columns FROM :"schema".outbox AS o WHERE :pending_selected
 ORDER BY o.id DESC LIMIT 1;

-- pending_types --
-- Of the `most` rows that are due first: event types, the most frequent first, with how many are pending, how many were
-- refused before, and the age of the oldest.
SELECT p.event_type, count(*), count(*) FILTER (WHERE p.attempts > 0),
       extract(epoch FROM clock_timestamp() - min(p.created_at))::float8
  FROM (SELECT event_type, attempts, created_at FROM :"schema".outbox
         ORDER BY next_attempt_at LIMIT %(most)s) AS p
 GROUP BY p.event_type
 ORDER BY count(*) DESC, p.event_type
 LIMIT %(at_most)s;

-- retry_now --
-- Make messages due for the scheduler. Not those that a scheduler has claimed, whose row is locked, or that are behind
-- the head of their key. One that was already due keeps its place. Returns the ids that are due now.
WITH free AS MATERIALIZED (
    SELECT o.id FROM :"schema".outbox AS o
     WHERE o.id = ANY(%(ids)s::bigint[])
       AND (o.claimed_by IS NULL OR o.next_attempt_at <= statement_timestamp())
       AND NOT :behind_head
       FOR UPDATE SKIP LOCKED
)
UPDATE :"schema".outbox AS o
   SET owner = 'scheduler',
       next_attempt_at = least(o.next_attempt_at, clock_timestamp()),
       attempts = CASE WHEN %(reset_attempts)s::boolean THEN 0 ELSE o.attempts END
 WHERE o.id = ANY(ARRAY(SELECT id FROM free))
RETURNING o.id;

-- dead_selected --
-- Fragment: a filter for dead letters. A condition that is null is not applied.
((%(ids)s::bigint[] IS NULL AND %(event_ids)s::text[] IS NULL)
 OR d.id = ANY(%(ids)s::bigint[]) OR d.event_id = ANY(%(event_ids)s::text[]::uuid[]))
AND (%(event_type)s::text IS NULL OR d.event_type LIKE %(event_type)s::text)
AND (%(reason)s::text IS NULL OR d.reason = %(reason)s::text)
AND (%(older_than)s::interval IS NULL OR d.died_at < statement_timestamp() - %(older_than)s::interval)
AND (%(created_older_than)s::interval IS NULL
     OR d.created_at < statement_timestamp() - %(created_older_than)s::interval)
AND (%(newer_than)s::interval IS NULL OR d.died_at >= statement_timestamp() - %(newer_than)s::interval)

-- dead_columns --
-- Fragment: a dead letter without its content.
d.id, d.event_id::text, d.event_type, d.ordering_key, d.exchange, d.routing_key, d.attempts, d.reason, d.last_error,
d.created_at, d.died_at

-- dead_letters --
-- A page of dead letters, the newest first. `before` and `before_id` are died_at and id of the last one of the page
-- before.
SELECT :dead_columns
  FROM :"schema".outbox_dead_letter AS d
 WHERE :dead_selected
   AND (%(before)s::timestamptz IS NULL
        OR (d.died_at, d.id) < (%(before)s::timestamptz, %(before_id)s::bigint))
 ORDER BY d.died_at DESC, d.id DESC
 LIMIT %(batch_size)s;

-- dead_letter --
-- One dead letter with its content. An event_id can have been buried twice: the newest one.
SELECT :dead_columns, :content_columns FROM :"schema".outbox_dead_letter AS d WHERE :dead_selected
 ORDER BY d.id DESC LIMIT 1;

-- dead_outlines --
-- One batch of a walk over dead letters, ordered by id: the columns from which a failure's fingerprint is computed.
SELECT d.id, d.reason, d.event_type, d.last_error, d.died_at
  FROM :"schema".outbox_dead_letter AS d
 WHERE d.id > %(after)s AND d.id <= %(up_to)s AND :dead_selected
 ORDER BY d.id
 LIMIT %(batch_size)s;

-- newest_dead_letter --
-- The upper bound of a walk: a message that is buried again meanwhile gets a new id and must not be met twice.
SELECT coalesce(max(id), 0) FROM :"schema".outbox_dead_letter;

-- replayed_columns --
-- Fragment: the columns that a dead letter keeps when it enters the outbox again. Its id is new, so it goes to the end
-- of its key.
event_id, schema_version, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload,
content_type, content_encoding, headers, properties, declarations, context, dedup_key

-- has_time_to_live --
-- Fragment: the message has the property `expiration`. -> and ->> raise an error for \u0000 and lone surrogates anywhere in
-- the document, so a document with an escape counts as having it.
CASE WHEN properties::text LIKE '%%\\u%%' THEN true ELSE properties ->> 'expiration' IS NOT NULL END

-- replay_dead --
-- Move dead letters back into the outbox, in their old order, as new rows of the relay with no attempt spent. A message
-- whose dedup_key is pending stays a dead letter, and of several with the same dedup_key only the newest is moved. An
-- expiry that has passed is dropped, and a time to live starts again: an operator who replays an expired message wants
-- it sent. The dead letters are deleted first, so that only one of two replays finds them; a row that is refused, because
-- a producer has inserted its dedup_key since this statement began, is put back. Returns each dead letter that was found
-- with its dedup_key, and why it was not moved (null: it was).
WITH chosen AS MATERIALIZED (
    SELECT d.id, d.dedup_key,
           CASE WHEN EXISTS (SELECT 1 FROM :"schema".outbox AS o WHERE o.dedup_key = d.dedup_key) THEN 'pending'
                WHEN d.dedup_key IS NOT NULL AND d.id < max(d.id) OVER (PARTITION BY d.dedup_key) THEN 'repeated'
           END AS why
      FROM :"schema".outbox_dead_letter AS d WHERE d.id = ANY(%(ids)s::bigint[])
), gone AS (
    DELETE FROM :"schema".outbox_dead_letter
     WHERE id = ANY(ARRAY(SELECT id FROM chosen WHERE why IS NULL))
    RETURNING *
), replayed AS (
    INSERT INTO :"schema".outbox (:replayed_columns, created_at, expires_at)
    SELECT :replayed_columns,
           CASE WHEN :has_time_to_live THEN clock_timestamp() ELSE created_at END,
           CASE WHEN expires_at > clock_timestamp() THEN expires_at END
      FROM gone ORDER BY id
    ON CONFLICT (dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING
    RETURNING dedup_key
), put_back AS (
    INSERT INTO :"schema".outbox_dead_letter
    SELECT * FROM gone WHERE dedup_key IS NOT NULL AND dedup_key NOT IN (
           SELECT r.dedup_key FROM replayed AS r WHERE r.dedup_key IS NOT NULL)
    RETURNING id
)
SELECT id, dedup_key, why FROM chosen WHERE why IS NOT NULL
UNION ALL
SELECT g.id, g.dedup_key, CASE WHEN p.id IS NOT NULL THEN 'pending' END
  FROM gone AS g LEFT JOIN put_back AS p ON p.id = g.id
 ORDER BY 1;

-- discard_dead --
-- Delete dead letters.
DELETE FROM :"schema".outbox_dead_letter WHERE id = ANY(%(ids)s::bigint[]) RETURNING id;

-- logged_types --
-- What a replay of the log would send: event types with their counts, first and last time.
SELECT e.event_type, count(*), min(e.created_at), max(e.created_at) FROM :"schema".outbox_event AS e
 WHERE :log_selected
 GROUP BY e.event_type ORDER BY count(*) DESC, e.event_type;

-- logged_keys --
-- The events that a replay sends, in the order of replay_events. For a cursor.
SELECT e.stream, e.version FROM :"schema".outbox_event AS e
 WHERE :log_selected
 ORDER BY :log_order;

-- replay_logged --
-- Enqueue these events of the log again, in this order. Returns how many were found.
WITH replayed AS (
    :replayed_event
      FROM (SELECT k.position, l.stream, l.version, l.event_id, l.event_type, l.payload, l.content_type,
                   l.content_encoding, l.type_version, l.headers::text AS headers
              FROM unnest(%(streams)s::text[], %(versions)s::bigint[]) WITH ORDINALITY AS k (stream, version, position)
              JOIN :"schema".outbox_event AS l ON l.stream = k.stream AND l.version = k.version) AS e
     ORDER BY e.position
    RETURNING id
)
SELECT count(*) FROM replayed;

-- archive_selected --
-- Fragment: a filter for archived messages. The stream of an event is its ordering key.
(%(stream)s::text IS NULL OR e.ordering_key = %(stream)s::text)
AND (%(event_type)s::text IS NULL OR e.event_type LIKE %(event_type)s::text)
AND (%(since)s::timestamptz IS NULL OR e.delivered_at >= %(since)s::timestamptz)
AND (%(until)s::timestamptz IS NULL OR e.delivered_at < %(until)s::timestamptz)

-- archived_types --
-- As logged_types, for the archive; the times are those of the delivery.
SELECT e.event_type, count(*), min(e.delivered_at), max(e.delivered_at) FROM :"schema".outbox_archive AS e
 WHERE :archive_selected
 GROUP BY e.event_type ORDER BY count(*) DESC, e.event_type;

-- archived_keys --
-- The archived messages that a replay sends, in the order in which they were enqueued. For a cursor.
SELECT e.id FROM :"schema".outbox_archive AS e WHERE :archive_selected ORDER BY e.id;

-- replay_archived --
-- Enqueue these archived messages again, to their old exchange and routing key unless others are given. The headers of
-- the replay come last: of two equal names in JSON the last one counts, and the message may have been a replay before.
-- created_at is new, so a time to live starts again. Returns how many were found.
WITH replayed AS (
    INSERT INTO :"schema".outbox (
        event_id, schema_version, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key,
        payload, content_type, content_encoding, headers, properties, declarations, context)
    SELECT e.event_id, e.schema_version, e.event_type, e.aggregate_type, e.aggregate_id, e.ordering_key,
           coalesce(%(exchange)s::text, e.exchange), coalesce(%(routing_key)s::text, e.routing_key),
           e.payload, e.content_type, e.content_encoding,
           (CASE WHEN e.headers ~ '^\s*\{\s*\}\s*$' THEN '{' ELSE regexp_replace(e.headers, '\s*\}\s*$', ',') END
            || :replay_headers || '}')::json,
           e.properties, e.declarations, e.context
      FROM (SELECT a.id, a.event_id, a.schema_version, a.event_type, a.aggregate_type, a.aggregate_id, a.ordering_key,
                   a.exchange, a.routing_key, a.payload, a.content_type, a.content_encoding,
                   a.headers::text AS headers, a.properties, a.declarations, a.context
              FROM :"schema".outbox_archive AS a
             WHERE a.id = ANY(%(ids)s::bigint[])) AS e
     ORDER BY e.id
    RETURNING id
)
SELECT count(*) FROM replayed;

-- enqueued_id --
-- The id of a message that was enqueued after the row `after`: a bounded search, because event_id has no index.
SELECT id FROM :"schema".outbox WHERE id > %(after)s AND event_id = %(event_id)s::text::uuid;

-- delivery_status --
-- Where a message is: dead-letter reason (null while pending), attempts and last error. No row: it was delivered.
SELECT NULL, attempts, last_error FROM :"schema".outbox WHERE id = %(id)s
UNION ALL
SELECT reason, attempts, last_error FROM :"schema".outbox_dead_letter WHERE id = %(id)s;

-- lock_timeout --
-- How long the statements of this transaction wait for a lock.
SELECT set_config('lock_timeout', %(milliseconds)s::text, true);

-- add_epoch --
-- Record the next epoch of the log, on this server. Returns its number.
INSERT INTO :"schema".outbox_epoch (epoch, system_identifier)
SELECT (SELECT max(epoch) + 1 FROM :"schema".outbox_epoch), system_identifier FROM pg_control_system()
RETURNING epoch;

-- move_to_epoch --
-- Move the events that were appended since the log was restored here into the new epoch: those with an id that this
-- server has given out, behind the last event (by position) with an id that it has not. Returns their ids.
UPDATE :"schema".outbox_event AS e
   SET epoch = %(epoch)s
 WHERE e.epoch = %(epoch)s - 1
   AND e.transaction_id < pg_snapshot_xmax(pg_current_snapshot())::text::bigint
   AND e.position > (SELECT max(f.position) FROM :"schema".outbox_event AS f
                      WHERE f.epoch = %(epoch)s - 1
                        AND f.transaction_id >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint)
RETURNING e.event_id;

-- deletable_events --
-- Fragment: events `e` that were appended before a time, of one category or of all. Not the newest event of a stream,
-- which holds the stream's version.
e.created_at < statement_timestamp() - %(older_than)s::interval
AND (%(category)s::text IS NULL OR split_part(e.stream, ':', 1) = %(category)s::text)
AND EXISTS (SELECT 1 FROM :"schema".outbox_event AS newer WHERE newer.stream = e.stream AND newer.version > e.version)

-- count_deletable_events --
-- How many events delete_events would delete.
SELECT count(*) FROM :"schema".outbox_event AS e WHERE :deletable_events;

-- delete_events --
-- Delete one batch of events of the log, for ever. Returns how many.
WITH gone AS (
    DELETE FROM :"schema".outbox_event
     WHERE ctid = ANY(ARRAY(SELECT e.ctid FROM :"schema".outbox_event AS e WHERE :deletable_events LIMIT %(batch_size)s))
    RETURNING 1
)
SELECT count(*) FROM gone;

-- forget_subject --
-- Delete the key of a subject; what remains is that it was forgotten. A row even if the subject had no key: it can get
-- none any more. Returns whether it had one.
INSERT INTO :"schema".outbox_subject_key AS k (subject, key, forgotten_at)
VALUES (%(subject)s::text, NULL, clock_timestamp())
ON CONFLICT (subject) DO UPDATE SET key = NULL, forgotten_at = coalesce(k.forgotten_at, clock_timestamp())
RETURNING (SELECT o.key IS NOT NULL FROM :"schema".outbox_subject_key AS o WHERE o.subject = %(subject)s::text);
