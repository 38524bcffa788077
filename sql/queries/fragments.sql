-- Fragments that queries of several files share. Not statements: a query includes one as :name.
--
-- The format of the files in this folder: a block is `-- name --`, a comment with its purpose, and a statement or
-- fragment. A name is unique in all files. outrider/storage/sql_files.py replaces :"schema" (a quoted identifier),
-- :'schema' (a quoted literal) and :fragment; %(name)s is a bound parameter.
--
-- Every time is the database's: clock_timestamp(), which advances within a transaction, unlike now().
-- statement_timestamp() stands where an index condition needs a stable value.

-- message_columns --
-- The columns of outrider.storage.message.Message, in the order of its fields. Times are microseconds since 2000-01-01
-- UTC, the unit of the replication protocol; JSON is text.
o.id, o.event_id::text, o.schema_version, o.event_type, o.aggregate_type, o.aggregate_id, o.ordering_key,
o.exchange, o.routing_key, o.payload, o.content_type, o.content_encoding,
o.headers::text, o.properties::text, o.declarations::text, o.context::text,
(extract(epoch FROM o.created_at) * 1000000)::bigint - 946684800000000,
(extract(epoch FROM o.expires_at) * 1000000)::bigint - 946684800000000,
CASE WHEN o.next_attempt_at = 'infinity' THEN 9223372036854775807
     ELSE (extract(epoch FROM o.next_attempt_at) * 1000000)::bigint - 946684800000000 END,
o.attempts, o.owner

-- supported_version --
-- The row is in a format that this version understands: OLDEST_SCHEMA_VERSION to SCHEMA_VERSION of
-- outrider/storage/message.py. Other rows are not sent. CASE is for the planner, which expects that half of the
-- rows meet it. Before the first ANALYZE it would expect hardly any row of a narrow range, and read the whole table.
CASE WHEN schema_version BETWEEN 1 AND 1 THEN true ELSE false END

-- message_bytes --
-- What a row counts against a limit in bytes: as Message.size. octet_length of a bytea does not read the value.
octet_length(o.payload)::bigint + octet_length(o.headers::text) + octet_length(o.properties::text)
    + coalesce(octet_length(o.declarations::text), 0) + coalesce(octet_length(o.context::text), 0) + 256

-- moved_columns --
-- The columns that the outbox, the dead letters and the archive have in common beside the id.
event_id, schema_version, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload,
content_type, content_encoding, headers, properties, declarations, context, created_at

-- dead_rows --
-- CTE behind `doomed` (locked rows of the outbox, with reason, error and spent): insert them into the dead letters. A row
-- keeps its id, unless a dead letter has that id already (because the ids of the outbox were restarted): it then gets the
-- next one that is free. Without this the row could never be buried and would stop its scheduler. Ids in the upper half
-- of bigint are not counted on from: there may be no next one. If another session takes an id at the same moment, the
-- row is not inserted: DO NOTHING has waited for that session.
numbered AS MATERIALIZED (
    SELECT doomed.*,
           CASE WHEN EXISTS (SELECT 1 FROM :"schema".outbox_dead_letter AS d WHERE d.id = doomed.id)
                THEN greatest((SELECT max(id) FROM :"schema".outbox_dead_letter WHERE id < 4611686018427387904),
                              (SELECT max(id) FROM doomed WHERE id < 4611686018427387904), 0)
                     + row_number() OVER (ORDER BY doomed.id)
                ELSE doomed.id END AS dead_id
      FROM doomed
), dead AS (
    INSERT INTO :"schema".outbox_dead_letter (
        id, :moved_columns, attempts, dedup_key, expires_at, last_error, last_failed_at, reason)
    SELECT dead_id, :moved_columns, least(attempts, 2147483647 - spent) + spent, dedup_key, expires_at,
           coalesce(error, last_error), CASE WHEN spent > 0 THEN clock_timestamp() ELSE last_failed_at END, reason
      FROM numbered
    ON CONFLICT (id) DO NOTHING
    RETURNING id
), gone AS (
    DELETE FROM :"schema".outbox AS o
     WHERE o.id = ANY(ARRAY(SELECT n.id FROM numbered AS n JOIN dead ON dead.id = n.dead_id))
    RETURNING o.id, o.ordering_key, o.event_type
)

-- unpark_followers --
-- CTE behind `gone(id, ordering_key)`: when the head of a key has left, the next parked rows of the key fall due. Up to
-- run_length rows, so that a long key drains in batches. A row that another session parks at the same moment is missed
-- here; unpark_heads finds it. Two choices are for the planner, which would otherwise walk all parked rows for each
-- key: the ids go through an array, and the second check of the row (it may have been unparked and claimed meanwhile)
-- uses isfinite, which does not match the condition of the index outbox_parked.
unparked AS (
    UPDATE :"schema".outbox AS o
       SET next_attempt_at = clock_timestamp()
     WHERE o.id = ANY(ARRAY(
           SELECT follower.id
             FROM (SELECT ordering_key, max(id) AS last_id FROM gone
                    WHERE ordering_key IS NOT NULL GROUP BY ordering_key) AS k
            CROSS JOIN LATERAL (
                  SELECT f.id FROM :"schema".outbox AS f
                   WHERE f.ordering_key = k.ordering_key AND f.id > k.last_id AND f.next_attempt_at = 'infinity'
                   ORDER BY f.id
                   LIMIT %(run_length)s
                     FOR UPDATE SKIP LOCKED
                  ) AS follower))
       AND NOT isfinite(o.next_attempt_at)
)

-- with_snapshot --
-- Joined to rows of t (xid), transactions as pgoutput sends them (the lower 32 bits): this statement's snapshot, and the
-- whole number of the transaction. The upper bits are those that bring the number nearest to the snapshot's xmax.
CROSS JOIN (SELECT pg_current_snapshot() AS snapshot) AS now
CROSS JOIN LATERAL (SELECT pg_snapshot_xmax(now.snapshot)::text::bigint AS xmax) AS newest
CROSS JOIN LATERAL (
      SELECT newest.xmax + ((t.xid - newest.xmax) & 4294967295) -
             CASE WHEN (t.xid - newest.xmax) & 4294967295 > 2147483647 THEN 4294967296 ELSE 0 END AS full_xid
      ) AS whole

-- not_seen --
-- With with_snapshot: this statement does not see the rows of the transaction yet. The WAL is ahead of visibility, for
-- an instant always, with synchronous replication for long: a row that is missing then may still appear.
NOT pg_visible_in_snapshot(whole.full_xid::text::xid8, now.snapshot)

-- keys_with_parked_rows --
-- Recursive CTE `k`: the ordering keys that have parked rows, one index probe per key, and a final null.
k (ordering_key) AS (
    (SELECT ordering_key FROM :"schema".outbox
      WHERE next_attempt_at = 'infinity'
      ORDER BY ordering_key LIMIT 1)
    UNION ALL
    SELECT (SELECT o.ordering_key FROM :"schema".outbox AS o
             WHERE o.next_attempt_at = 'infinity' AND o.ordering_key > k.ordering_key
             ORDER BY o.ordering_key LIMIT 1)
      FROM k WHERE k.ordering_key IS NOT NULL
)

-- stream_headers --
-- The start of a JSON object: the headers that name an event's stream and version. Text, not jsonb: the event's own
-- headers must come out as they were written.
'{"stream":' || to_json(e.stream)::text || ',"stream_version":' || e.version

-- own_headers --
-- The rest of a JSON object that was begun as text: the event's own headers and the closing brace.
CASE WHEN e.headers ~ '^\s*\{\s*\}\s*$' THEN '}' ELSE ',' || substr(ltrim(e.headers, E' \t\r\n'), 2) END

-- log_selected --
-- The filter of a replay: events `e` of the log. Parameters are cast from text, so that every driver can bind them.
(%(stream)s::text IS NULL OR e.stream = %(stream)s::text)
AND (%(event_type)s::text IS NULL OR e.event_type LIKE %(event_type)s::text)
AND (%(since)s::text IS NULL OR e.created_at >= %(since)s::text::timestamptz)
AND (%(until)s::text IS NULL OR e.created_at < %(until)s::text::timestamptz)
AND e.version > %(after)s::text::bigint

-- log_order --
-- The order of a replay: by time, but never against the order of a stream's versions. The clock may have been set back
-- between two appends.
max(e.created_at) OVER (PARTITION BY e.stream ORDER BY e.version), e.stream, e.version

-- replay_headers --
-- Part of a JSON object: the headers that tell a consumer of a replay. Its id is a UUID.
'"replayed": true,"replay_id":"' || %(replay_id)s::text::uuid || '"'

-- replayed_event --
-- INSERT of an event `e` of the log into the outbox, with the headers of its append but those of the context, and those
-- of the replay.
INSERT INTO :"schema".outbox (
    event_id, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload, content_type,
    content_encoding, headers)
SELECT e.event_id, e.event_type, nullif(split_part(e.stream, ':', 1), e.stream),
       nullif(substr(e.stream, length(split_part(e.stream, ':', 1)) + 2), ''), e.stream, %(exchange)s::text,
       coalesce(%(routing_key)s::text, e.event_type), e.payload, e.content_type, e.content_encoding,
       (:stream_headers
        || CASE WHEN strpos(e.stream, ':') > 0
                THEN ',"aggregate_type":' || to_json(split_part(e.stream, ':', 1))::text || ',"aggregate_id":'
                     || to_json(substr(e.stream, strpos(e.stream, ':') + 1))::text
                ELSE '' END
        || CASE WHEN e.type_version = 1 THEN '' ELSE ',"type_version":' || e.type_version END
        || ',' || :replay_headers || :own_headers)::json

-- estimated_pending --
-- The planner's estimate of the number of rows in the outbox.
(SELECT c.reltuples::bigint FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  WHERE n.nspname = :'schema' AND c.relname = 'outbox')

-- estimated_dead --
-- The planner's estimate of the number of dead letters.
(SELECT c.reltuples::bigint FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  WHERE n.nspname = :'schema' AND c.relname = 'outbox_dead_letter')

-- queue_counts --
-- Fragment: the pending messages by state, at a bounded cost: each count reads at most `most` rows, so a count of `most`
-- is a lower bound. If one of them is, pending is the planner's estimate, but at least the sum of the counts. pending is
-- the sum of due, with_relay, claimed, delayed, backing_off and parked. The oldest message is looked for among the first
-- `most` that were enqueued; a delayed message does not count before its time.
WITH RECURSIVE due AS MATERIALIZED (
    SELECT next_attempt_at, attempts, :supported_version AS supported FROM :"schema".outbox
     WHERE next_attempt_at <= statement_timestamp()
     ORDER BY next_attempt_at LIMIT %(most)s
), waiting AS MATERIALIZED (
    SELECT owner, claimed_by, attempts, :supported_version AS supported FROM :"schema".outbox
     WHERE next_attempt_at > statement_timestamp() AND next_attempt_at < 'infinity'
     ORDER BY next_attempt_at LIMIT %(most)s
), parked AS MATERIALIZED (
    SELECT attempts, :supported_version AS supported FROM :"schema".outbox
     WHERE next_attempt_at = 'infinity'
     ORDER BY ordering_key, id LIMIT %(most)s
), :keys_with_parked_rows, counted AS (
    SELECT (SELECT count(*) FROM due) AS due,
           (SELECT count(*) FROM waiting) AS waiting,
           (SELECT count(*) FROM parked) AS parked
), every AS (
    SELECT attempts, supported FROM due
    UNION ALL SELECT attempts, supported FROM waiting
    UNION ALL SELECT attempts, supported FROM parked
)
SELECT CASE WHEN greatest(due, waiting, parked) < %(most)s THEN due + waiting + parked
            ELSE greatest(due + waiting + parked, :estimated_pending) END
           AS pending,
       due,
       (SELECT count(*) FROM waiting WHERE owner = 'relay') AS with_relay,
       (SELECT count(*) FROM waiting WHERE owner = 'scheduler' AND claimed_by IS NOT NULL) AS claimed,
       (SELECT count(*) FROM waiting WHERE owner = 'scheduler' AND claimed_by IS NULL AND attempts = 0) AS delayed,
       (SELECT count(*) FROM waiting WHERE owner = 'scheduler' AND claimed_by IS NULL AND attempts > 0) AS backing_off,
       parked,
       (SELECT count(*) FROM (SELECT 1 FROM k WHERE ordering_key IS NOT NULL LIMIT %(most)s) AS b) AS parked_keys,
       (SELECT count(*) FROM every WHERE attempts > 0) AS retrying,
       (SELECT count(*) FROM every WHERE NOT supported) AS unsupported,
       (SELECT extract(epoch FROM clock_timestamp() - min(o.created_at))::float8
          FROM (SELECT created_at, next_attempt_at, owner, claimed_by, attempts FROM :"schema".outbox
                 ORDER BY id LIMIT %(most)s) AS o
         WHERE o.owner = 'relay' OR o.claimed_by IS NOT NULL OR o.attempts > 0
               OR o.next_attempt_at <= statement_timestamp() OR o.next_attempt_at = 'infinity') AS oldest_seconds,
       (SELECT extract(epoch FROM clock_timestamp() - min(next_attempt_at))::float8 FROM due) AS overdue_seconds
  FROM counted
