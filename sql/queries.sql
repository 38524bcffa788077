-- Every query that the services run, by name. One blank-line separated block each: `-- name --`, a line or more of
-- purpose, then the statement. outbox/sqlfiles.py loads the file once per process and puts :"schema" (a quoted
-- identifier) and :fragment (a block of this file) in place; %(name)s are bound parameters.
--
-- Every time is the database's: clock_timestamp(), which moves on within a transaction, unlike now().

-- message_columns --
-- Fragment: the columns of outbox.message.Message, in the order of its fields. Instants are microseconds since
-- 2000-01-01 UTC, the unit of the replication protocol; JSON travels as text.
o.id, o.event_id::text, o.schema_version, o.event_type, o.aggregate_type, o.aggregate_id, o.ordering_key,
o.exchange, o.routing_key, o.payload, o.content_type, o.content_encoding,
o.headers::text, o.properties::text, o.declarations::text, o.context::text,
(extract(epoch FROM o.created_at) * 1000000)::bigint - 946684800000000,
(extract(epoch FROM o.expires_at) * 1000000)::bigint - 946684800000000,
CASE WHEN o.next_attempt_at = 'infinity' THEN 9223372036854775807
     ELSE (extract(epoch FROM o.next_attempt_at) * 1000000)::bigint - 946684800000000 END,
o.attempts, o.owner

-- moved_columns --
-- Fragment: what the outbox, the dead letters and the archive have in common beside the id, for moving a row whole.
event_id, schema_version, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload,
content_type, content_encoding, headers, properties, declarations, context, created_at

-- dead_id --
-- Fragment: the id that a row of `gone` gets among the dead letters: its own, or, where a dead letter has that already
-- (ids were restarted), one that nobody has. A row that cannot be buried would stop its scheduler for ever.
CASE WHEN EXISTS (SELECT 1 FROM :"schema".outbox_dead_letter AS d WHERE d.id = gone.id)
     THEN greatest((SELECT max(id) FROM :"schema".outbox_dead_letter), (SELECT max(id) FROM gone))
          + row_number() OVER (ORDER BY gone.id)
     ELSE gone.id END

-- held_by_caller --
-- Fragment: a scheduler acts only on rows whose claim is still its own; the relay (no claim) only on rows still its own.
(o.claimed_by = %(claim)s::text OR (%(claim)s::text IS NULL AND o.owner = 'relay'))

-- wake_followers --
-- Fragment, as CTEs behind `gone(id, ordering_key)`: a key whose head has left gets its next rows due. A run of them, so
-- that a long key drains in batches. A row that is parked at this very moment by somebody else is missed here and found
-- by unpark_heads. The ids go through an array, and the second look at the row (it may have been woken and claimed since)
-- avoids the words of outbox_parked: the planner must not walk all parked rows for each key.
woken AS (
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

-- settle --
-- Delivered rows leave the outbox. Returns the ids that were there. The relay (no claim) removes a row whoever holds it
-- by now: delivered is delivered.
WITH gone AS (
    DELETE FROM :"schema".outbox AS o
     WHERE o.id = ANY(%(ids)s::bigint[])
       AND (%(claim)s::text IS NULL OR o.claimed_by = %(claim)s::text)
    RETURNING o.id, o.ordering_key
), :wake_followers
SELECT id FROM gone;

-- settle_unfollowed --
-- As settle, for a relay that has left no row of any key behind: nobody can wait for these, and nobody is looked for. A
-- row that comes to be parked all the same is found by unpark_heads.
DELETE FROM :"schema".outbox AS o
 WHERE o.id = ANY(%(ids)s::bigint[])
   AND (%(claim)s::text IS NULL OR o.claimed_by = %(claim)s::text)
RETURNING o.id;

-- settle_to_archive --
-- Delivered rows move to the archive, where retention is on. As settle otherwise. An id that the archive has already (ids
-- were restarted) must not keep a delivered row in the outbox: it would be sent for ever.
WITH gone AS (
    DELETE FROM :"schema".outbox AS o
     WHERE o.id = ANY(%(ids)s::bigint[])
       AND (%(claim)s::text IS NULL OR o.claimed_by = %(claim)s::text)
    RETURNING o.*
), kept AS (
    INSERT INTO :"schema".outbox_archive (id, :moved_columns, attempts)
    SELECT id, :moved_columns, attempts FROM gone
    ON CONFLICT DO NOTHING
), :wake_followers
SELECT id FROM gone;

-- fail --
-- A refused message spends an attempt and waits for its backoff. From its first failure a row is the scheduler's.
UPDATE :"schema".outbox AS o
   SET attempts = least(o.attempts, 2147483646) + 1,
       owner = 'scheduler',
       claimed_by = NULL,
       next_attempt_at = clock_timestamp() + f.backoff_seconds * interval '1 second',
       last_error = f.error,
       last_failed_at = clock_timestamp()
  FROM unnest(%(ids)s::bigint[], %(errors)s::text[], %(backoff_seconds)s::float8[]) AS f (id, error, backoff_seconds)
 WHERE o.id = f.id
   AND :held_by_caller
RETURNING o.id;

-- bury --
-- A message that is given up moves to the dead letters, whole, with the reason; `spent` is 1 where the last attempt
-- counts. Its key goes on.
WITH doomed AS (
    SELECT * FROM unnest(%(ids)s::bigint[], %(reasons)s::text[], %(errors)s::text[], %(spent)s::int[])
        AS d (id, reason, error, spent)
), gone AS (
    DELETE FROM :"schema".outbox AS o
     USING doomed AS d
     WHERE o.id = d.id
       AND :held_by_caller
    RETURNING o.*, d.reason, d.error, d.spent
), dead AS (
    INSERT INTO :"schema".outbox_dead_letter (
        id, :moved_columns, attempts, dedup_key, expires_at, last_error, last_failed_at, reason)
    SELECT :dead_id, :moved_columns, least(attempts, 2147483646) + spent, dedup_key, expires_at, coalesce(error, last_error),
           CASE WHEN spent > 0 THEN clock_timestamp() ELSE last_failed_at END, reason
      FROM gone
), :wake_followers
SELECT id FROM gone;

-- hand_over --
-- The relay leaves rows to the scheduler: due now, no attempt spent. A row that is not its own any more stays as it is.
UPDATE :"schema".outbox
   SET owner = 'scheduler', next_attempt_at = clock_timestamp()
 WHERE id = ANY(%(ids)s::bigint[])
   AND owner = 'relay'
RETURNING id;

-- hand_over_all --
-- A slot that was created anew saw nothing of the rows that are here: they are the scheduler's. One batch; repeat
-- until it returns none.
WITH batch AS MATERIALIZED (
    SELECT id FROM :"schema".outbox
     WHERE owner = 'relay' AND id <= %(up_to)s
     ORDER BY id
     LIMIT %(batch_size)s
       FOR UPDATE SKIP LOCKED
)
UPDATE :"schema".outbox AS o
   SET owner = 'scheduler', next_attempt_at = clock_timestamp()
  FROM batch
 WHERE o.id = batch.id
RETURNING o.id;

-- newest_id --
-- The end of hand_over_all: rows that come later are read from the new slot.
SELECT coalesce(max(id), 0) FROM :"schema".outbox;

-- owners --
-- While the relay catches up: which of these rows are still in the table, and whose they are.
SELECT id, owner FROM :"schema".outbox WHERE id = ANY(%(ids)s::bigint[]);

-- in_progress --
-- Which of these transactions (their lower 32 bits, as pgoutput gives them) does a new snapshot not see yet? The WAL is
-- ahead of visibility, with synchronous replication for long: a row that is missing then is not gone. The upper bits are
-- those that bring the number nearest to the snapshot's xmax.
SELECT t.xid
  FROM unnest(%(xids)s::bigint[]) AS t (xid)
 CROSS JOIN (SELECT pg_current_snapshot() AS snapshot) AS now
 CROSS JOIN LATERAL (SELECT pg_snapshot_xmax(now.snapshot)::text::bigint AS xmax) AS newest
 CROSS JOIN LATERAL (
       SELECT newest.xmax + ((t.xid - newest.xmax) & 4294967295) -
              CASE WHEN (t.xid - newest.xmax) & 4294967295 > 2147483647 THEN 4294967296 ELSE 0 END AS full_xid
       ) AS whole
 WHERE NOT pg_visible_in_snapshot(whole.full_xid::text::xid8, now.snapshot);

-- keys_in_table --
-- Every ordering key that has a row, by a walk over the index, one probe a key. A relay that starts asks the table
-- before it sends one of these.
WITH RECURSIVE k (ordering_key) AS (
    (SELECT ordering_key FROM :"schema".outbox WHERE ordering_key IS NOT NULL ORDER BY ordering_key LIMIT 1)
    UNION ALL
    SELECT (SELECT o.ordering_key FROM :"schema".outbox AS o
             WHERE o.ordering_key > k.ordering_key ORDER BY o.ordering_key LIMIT 1)
      FROM k WHERE k.ordering_key IS NOT NULL
)
SELECT ordering_key FROM k WHERE ordering_key IS NOT NULL;

-- free_keys --
-- Of these rows, each the relay's next of a blocked key: the keys that have nothing else before it, in the table's
-- order or in the scheduler's hands.
SELECT k.ordering_key
  FROM unnest(%(keys)s::text[], %(ids)s::bigint[]) AS k (ordering_key, id)
 WHERE NOT EXISTS (
       SELECT 1 FROM :"schema".outbox AS o
        WHERE o.ordering_key = k.ordering_key AND o.id < k.id)
   AND NOT EXISTS (
       SELECT 1 FROM :"schema".outbox AS o
        WHERE o.ordering_key = k.ordering_key AND o.id <> k.id AND o.owner = 'scheduler');

-- wal_position --
-- Where the WAL ends now: rows committed before are checked against the table while the relay catches up.
SELECT pg_current_wal_insert_lsn()::text;

-- server_clock --
-- The database's clock, in the unit of the replication protocol.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 946684800000000;

-- claim_due --
-- Lease due rows to one scheduler. MATERIALIZED keeps LIMIT exact: the planner must not run the subquery twice. An
-- ordered row is claimed only if every earlier row of its key is claimed with it: the n-th due row of the key must be
-- the n-th of the table. The other due rows of a key are parked, so that they cost later claims nothing.
-- statement_timestamp() is stable and so can be an index condition; with the volatile clock_timestamp() every claim
-- would walk over all the rows that are not due. Ids go through arrays, which the planner looks up by primary key at
-- any size. Comes as at least one row: how many were parked, and the columns of a claimed row (null where none was).
WITH due AS MATERIALIZED (
    SELECT id, ordering_key FROM :"schema".outbox
     WHERE next_attempt_at <= statement_timestamp()
       AND schema_version <= %(schema_version)s
     ORDER BY next_attempt_at
     LIMIT %(batch_size)s
       FOR UPDATE SKIP LOCKED
), heads AS MATERIALIZED (
    SELECT run.id
      FROM (SELECT ordering_key, array_agg(id ORDER BY id) AS ids FROM due
             WHERE ordering_key IS NOT NULL GROUP BY ordering_key) AS k
     CROSS JOIN LATERAL (
           SELECT f.id, k.ids[row_number() OVER (ORDER BY f.id)] AS due_id
             FROM (SELECT id FROM :"schema".outbox
                    WHERE ordering_key = k.ordering_key
                    ORDER BY id
                    LIMIT cardinality(k.ids)) AS f
           ) AS run
     WHERE run.id = run.due_id
), leased AS (
    UPDATE :"schema".outbox AS o
       SET owner = 'scheduler', claimed_by = %(claim)s, next_attempt_at = clock_timestamp() + %(lease)s
     WHERE o.id = ANY(ARRAY(SELECT id FROM due WHERE ordering_key IS NULL UNION ALL SELECT id FROM heads))
    RETURNING o.*
), parked AS (
    UPDATE :"schema".outbox AS o
       SET owner = 'scheduler', claimed_by = NULL, next_attempt_at = 'infinity'
     WHERE o.id = ANY(ARRAY(SELECT id FROM due WHERE ordering_key IS NOT NULL EXCEPT SELECT id FROM heads))
    RETURNING o.id
)
SELECT behind.parked, :message_columns
  FROM (SELECT count(*) AS parked FROM parked) AS behind
  LEFT JOIN leased AS o ON true
 ORDER BY o.id;

-- next_due --
-- Seconds until the next row falls due, null when none will by itself. Negative: work is waiting.
SELECT extract(epoch FROM min(next_attempt_at) - clock_timestamp())::float8
  FROM :"schema".outbox
 WHERE next_attempt_at < 'infinity' AND schema_version <= %(schema_version)s;

-- defer --
-- A broker outage: the claimed rows wait for the cooldown; no attempt is spent.
UPDATE :"schema".outbox AS o
   SET claimed_by = NULL, next_attempt_at = clock_timestamp() + %(cooldown)s
 WHERE o.id = ANY(%(ids)s::bigint[]) AND o.claimed_by = %(claim)s
RETURNING o.id;

-- release --
-- Claimed rows that were not sent (shutdown, or an earlier row of their key failed) go back: due now. The next claim
-- parks those that still wait behind their key's head.
UPDATE :"schema".outbox AS o
   SET claimed_by = NULL, next_attempt_at = clock_timestamp()
 WHERE o.id = ANY(%(ids)s::bigint[]) AND o.claimed_by = %(claim)s
RETURNING o.id;

-- unpark_heads --
-- The sweep behind wake_followers: a parked row that has become the head of its key falls due. Walks the keys that
-- have parked rows, one index probe each. For the array and isfinite see wake_followers.
WITH RECURSIVE k (ordering_key) AS (
    (SELECT ordering_key FROM :"schema".outbox
      WHERE next_attempt_at = 'infinity'
      ORDER BY ordering_key LIMIT 1)
    UNION ALL
    SELECT (SELECT o.ordering_key FROM :"schema".outbox AS o
             WHERE o.next_attempt_at = 'infinity' AND o.ordering_key > k.ordering_key
             ORDER BY o.ordering_key LIMIT 1)
      FROM k WHERE k.ordering_key IS NOT NULL
)
UPDATE :"schema".outbox AS o
   SET next_attempt_at = clock_timestamp()
 WHERE o.id = ANY(ARRAY(
       SELECT head.id
         FROM k
        CROSS JOIN LATERAL (
              SELECT f.id, f.next_attempt_at FROM :"schema".outbox AS f
               WHERE f.ordering_key = k.ordering_key ORDER BY f.id LIMIT 1
              ) AS head
        WHERE NOT isfinite(head.next_attempt_at)))
   AND NOT isfinite(o.next_attempt_at)
RETURNING o.id;

-- expire --
-- Messages past their expires_at move to the dead letters, except while a scheduler holds them or the relay may still
-- be sending them. One batch; a full one means there is more.
WITH batch AS MATERIALIZED (
    SELECT id FROM :"schema".outbox
     WHERE expires_at <= statement_timestamp()
       AND ((owner = 'scheduler' AND claimed_by IS NULL) OR next_attempt_at <= statement_timestamp())
       AND schema_version <= %(schema_version)s
     ORDER BY expires_at
     LIMIT %(batch_size)s
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM :"schema".outbox AS o
     WHERE o.id = ANY(ARRAY(SELECT id FROM batch))
    RETURNING o.*
), dead AS (
    INSERT INTO :"schema".outbox_dead_letter (
        id, :moved_columns, attempts, dedup_key, expires_at, last_error, last_failed_at, reason)
    SELECT :dead_id, :moved_columns, attempts, dedup_key, expires_at, last_error, last_failed_at, 'expired' FROM gone
), :wake_followers
SELECT event_type FROM gone;

-- worker_seen --
-- A service tells that it lives, and in which role.
INSERT INTO :"schema".outbox_worker AS w (kind, name, role, version, host, pid)
VALUES (%(kind)s, %(name)s, %(role)s, %(version)s, %(host)s, %(pid)s)
ON CONFLICT (kind, name) DO UPDATE
   SET role = excluded.role, version = excluded.version, host = excluded.host, pid = excluded.pid,
       last_seen_at = clock_timestamp(),
       started_at = CASE WHEN w.pid = excluded.pid AND w.host = excluded.host THEN w.started_at
                         ELSE clock_timestamp() END;

-- worker_gone --
-- A service that ends takes its row with it.
DELETE FROM :"schema".outbox_worker WHERE kind = %(kind)s AND name = %(name)s;

-- enqueued_columns --
-- Fragment: what a producer writes. The other columns are the database's: id, clocks, hand-over.
event_id, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload, content_type,
content_encoding, headers, properties, declarations, context, dedup_key, expires_at

-- copied_columns --
-- Fragment: what enqueue_copy writes beside the event_id: enqueued_columns that are text, JSON or bytes. Of these, and
-- NULL, the binary form is the same everywhere.
event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload, content_type,
content_encoding, headers, properties, declarations, context

-- enqueued_values --
-- Fragment: one message. Every parameter but the payload is text, whatever the driver would make of json or uuid.
%(event_id)s::text::uuid, %(event_type)s::text, %(aggregate_type)s::text, %(aggregate_id)s::text,
%(ordering_key)s::text, %(exchange)s::text, %(routing_key)s::text, %(payload)s::bytea, %(content_type)s::text,
%(content_encoding)s::text, %(headers)s::text::json, %(properties)s::text::json, %(declarations)s::text::json,
%(context)s::text::json, %(dedup_key)s::text,
coalesce(%(expires_at)s::text::timestamptz,
         clock_timestamp() + %(expires_in_seconds)s::text::float8 * interval '1 second')

-- enqueued_rows --
-- Fragment: many messages, as columns. A column that is the same for all is sent once, as first_..., or, all null, not
-- at all: unnest fills up with nulls. WITH ORDINALITY, because rows of a key must get their ids in order.
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
-- Fragment: see enqueued_rows.
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
-- A message enters the outbox, in the caller's transaction. No RETURNING: a role that may only INSERT can run it.
INSERT INTO :"schema".outbox (:enqueued_columns)
VALUES (:enqueued_values);

-- enqueue_plain --
-- As enqueue, for a message that has only what every message has: a task. Drivers and the planner charge by the value.
INSERT INTO :"schema".outbox (
    event_id, event_type, exchange, routing_key, payload, content_type, content_encoding, headers, properties,
    declarations)
VALUES (%(event_id)s::text::uuid, %(event_type)s::text, %(exchange)s::text, %(routing_key)s::text, %(payload)s::bytea,
        %(content_type)s::text, %(content_encoding)s::text, %(headers)s::text::json, %(properties)s::text::json,
        %(declarations)s::text::json);

-- enqueue_once --
-- As enqueue, for a message with a dedup_key: while one with the same key is pending, nothing is written and the row
-- count says so. No conflict target: that would need the right to SELECT.
INSERT INTO :"schema".outbox (:enqueued_columns)
VALUES (:enqueued_values)
ON CONFLICT DO NOTHING;

-- enqueue_delayed --
-- As enqueue, for a message that waits: it is the scheduler's from the start.
INSERT INTO :"schema".outbox (:enqueued_columns, owner, next_attempt_at)
VALUES (:enqueued_values,
        'scheduler',
        coalesce(%(deliver_at)s::text::timestamptz,
                 clock_timestamp() + %(deliver_in_seconds)s::text::float8 * interval '1 second'))
ON CONFLICT DO NOTHING;

-- enqueue_many --
-- As enqueue, for any number of messages in one round trip.
INSERT INTO :"schema".outbox (:enqueued_columns)
:enqueued_rows
  FROM :enqueued_unnest
 ORDER BY e.position
ON CONFLICT DO NOTHING;

-- enqueue_copy --
-- As enqueue_many, and faster, for rows that are neither delayed nor have a dedup_key or an expiry: COPY takes values as
-- they are, and knows no ON CONFLICT. In binary neither side has to do with hexadecimal digits and escapes.
COPY :"schema".outbox (event_id, :copied_columns) FROM STDIN (FORMAT BINARY);

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

-- server_facts --
-- What set-up and doctor must know of the server and of the role that asks.
SELECT current_setting('server_version_num')::int AS server_version,
       current_setting('wal_level') AS wal_level,
       current_setting('max_replication_slots')::int AS max_replication_slots,
       current_setting('max_wal_senders')::int AS max_wal_senders,
       pg_is_in_recovery() AS in_recovery,
       current_user::text AS role,
       (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user) AS may_replicate,
       current_database()::text AS database;

-- applied_migrations --
-- Which migrations this schema has.
SELECT version FROM :"schema".outbox_migration ORDER BY version;

-- schema_tables --
-- Which of our tables the schema holds; none before the first set-up.
SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p')
   AND c.relname IN ('outbox', 'outbox_dead_letter', 'outbox_archive', 'outbox_event', 'outbox_inbox',
                     'outbox_worker', 'outbox_migration');

-- publication_shape --
-- What the publication publishes, or no row when it is missing.
SELECT p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate,
       coalesce(array_agg(t.schemaname || '.' || t.tablename ORDER BY 1) FILTER (WHERE t.tablename IS NOT NULL), '{}')
           AS tables
  FROM pg_publication AS p
  LEFT JOIN pg_publication_tables AS t ON t.pubname = p.pubname
 WHERE p.pubname = %(publication)s
 GROUP BY p.oid, p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate;

-- slot_state --
-- The replication slot, or no row when it is missing. to_jsonb, because newer servers tell more (invalidation_reason,
-- conflicting, failover).
SELECT to_jsonb(s) ||
       jsonb_build_object('retained_bytes',
           CASE WHEN pg_is_in_recovery() THEN NULL
                ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn) END)
  FROM pg_replication_slots AS s
 WHERE s.slot_name = %(slot)s;

-- setup_lock --
-- One set-up of a schema at a time; gone with the transaction, so that it survives no crash and no pooler.
SELECT pg_advisory_xact_lock(hashtextextended('outbox setup ' || %(schema)s, 0));

-- publication_has_column_list --
-- A publication of some columns only would cut messages in half. to_jsonb, because 14 knows no column lists.
SELECT coalesce(bool_or(to_jsonb(r) ->> 'prattrs' IS NOT NULL), false)
  FROM pg_publication AS p JOIN pg_publication_rel AS r ON r.prpubid = p.oid
 WHERE p.pubname = %(publication)s;

-- handover_seconds --
-- How long a new row is the relay's, as the default of next_attempt_at says; null where the default has another form.
SELECT extract(epoch FROM substring(pg_get_expr(d.adbin, d.adrelid) FROM '''(.+)''::interval')::interval)::float8
  FROM pg_attrdef AS d
  JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
  JOIN pg_class AS c ON c.oid = d.adrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s AND c.relname = 'outbox' AND a.attname = 'next_attempt_at';

-- kept_rows --
-- What dropping the tables would lose: undelivered messages, dead letters, archived messages, events of streams, marks of
-- processed events.
SELECT (SELECT count(*) FROM :"schema".outbox),
       (SELECT count(*) FROM :"schema".outbox_dead_letter),
       (SELECT count(*) FROM :"schema".outbox_archive),
       (SELECT count(*) FROM :"schema".outbox_event),
       (SELECT count(*) FROM :"schema".outbox_inbox);

-- prune_archive --
-- Delivered messages past their retention, the oldest first. One batch; a full one means there is more. No row lock:
-- it would need the privilege to update.
DELETE FROM :"schema".outbox_archive
 WHERE id = ANY(ARRAY(
       SELECT id FROM :"schema".outbox_archive
        WHERE delivered_at < statement_timestamp() - %(retention)s::interval
        ORDER BY delivered_at
        LIMIT %(batch_size)s))
RETURNING id;

-- prune_dead_letters --
-- Dead letters past their retention. As prune_archive.
DELETE FROM :"schema".outbox_dead_letter
 WHERE id = ANY(ARRAY(
       SELECT id FROM :"schema".outbox_dead_letter
        WHERE died_at < statement_timestamp() - %(retention)s::interval
        ORDER BY died_at
        LIMIT %(batch_size)s))
RETURNING id;

-- prune_events --
-- Events past their retention. The newest event of a stream stays for ever: it holds the stream's version. So this walks
-- on from `after` (null: from the start) instead of meeting those again in every batch, and returns how many it looked
-- at, how many are gone, and where it got to.
WITH old AS MATERIALIZED (
    SELECT e.ctid AS place, e.stream, e.version, e.created_at FROM :"schema".outbox_event AS e
     WHERE e.created_at < statement_timestamp() - %(retention)s::interval
       AND e.created_at > coalesce(%(after)s::timestamptz, '-infinity')
     ORDER BY e.created_at
     LIMIT %(batch_size)s
), gone AS (
    DELETE FROM :"schema".outbox_event
     WHERE ctid = ANY(ARRAY(
           SELECT old.place FROM old
            WHERE EXISTS (SELECT 1 FROM :"schema".outbox_event AS newer
                           WHERE newer.stream = old.stream AND newer.version > old.version)))
    RETURNING 1
)
SELECT (SELECT count(*) FROM old), (SELECT count(*) FROM gone), (SELECT max(created_at) FROM old);

-- prune_inbox --
-- Marks of processed events past their retention. As prune_archive; by ctid, because a mark is never updated.
DELETE FROM :"schema".outbox_inbox
 WHERE ctid = ANY(ARRAY(
       SELECT ctid FROM :"schema".outbox_inbox
        WHERE processed_at < statement_timestamp() - %(retention)s::interval
        ORDER BY processed_at
        LIMIT %(batch_size)s))
RETURNING 1;

-- forget_workers --
-- Rows of services that were killed: nobody else takes them away, and a name is often used once.
DELETE FROM :"schema".outbox_worker
 WHERE last_seen_at < statement_timestamp() - %(unseen)s::interval
RETURNING 1;

-- mark_processed --
-- A consumer processes an event, in the transaction of its effects. Where another transaction is at the same event, this
-- waits for its end. Returns a row to whoever is first, and none to the others.
INSERT INTO :"schema".outbox_inbox (consumer, event_id)
VALUES (%(consumer)s::text, %(event_id)s::text)
ON CONFLICT DO NOTHING
RETURNING 1;

-- sample --
-- The gauges, at a bounded cost: each count looks at no more than `most` rows, and where there are more it is at least
-- that, or the planner's estimate if that is higher. The age is that of the longest overdue row.
SELECT (SELECT CASE WHEN count(*) < %(most)s THEN count(*)
                    ELSE greatest(count(*), (SELECT c.reltuples::bigint FROM pg_class AS c
                                               JOIN pg_namespace AS n ON n.oid = c.relnamespace
                                              WHERE n.nspname = :'schema' AND c.relname = 'outbox')) END
          FROM (SELECT 1 FROM :"schema".outbox ORDER BY next_attempt_at LIMIT %(most)s) AS p) AS pending,
       (SELECT count(*) FILTER (WHERE attempts > 0)
          FROM (SELECT attempts FROM :"schema".outbox ORDER BY next_attempt_at LIMIT %(most)s) AS r) AS retrying,
       (SELECT count(*) FROM (SELECT 1 FROM :"schema".outbox
                               WHERE next_attempt_at = 'infinity'
                               ORDER BY ordering_key, id LIMIT %(most)s) AS w) AS parked,
       (SELECT CASE WHEN count(*) < %(most)s THEN count(*)
                    ELSE greatest(count(*), (SELECT c.reltuples::bigint FROM pg_class AS c
                                               JOIN pg_namespace AS n ON n.oid = c.relnamespace
                                              WHERE n.nspname = :'schema' AND c.relname = 'outbox_dead_letter')) END
          FROM (SELECT 1 FROM :"schema".outbox_dead_letter ORDER BY died_at LIMIT %(most)s) AS d) AS dead,
       (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - o.created_at)), 0)::float8
          FROM (SELECT created_at FROM :"schema".outbox
                 WHERE next_attempt_at <= statement_timestamp()
                 ORDER BY next_attempt_at LIMIT 1) AS o) AS oldest_seconds;

-- pending_types --
-- The types of the `most` rows that are due first, the most frequent types first: how many of them are pending, how many
-- were refused before, and the age of the oldest.
SELECT p.event_type, count(*), count(*) FILTER (WHERE p.attempts > 0),
       extract(epoch FROM clock_timestamp() - min(p.created_at))::float8
  FROM (SELECT event_type, attempts, created_at FROM :"schema".outbox
         ORDER BY next_attempt_at LIMIT %(most)s) AS p
 GROUP BY p.event_type
 ORDER BY count(*) DESC, p.event_type
 LIMIT %(at_most)s;

-- dead_selected --
-- Fragment: which dead letters an operator means. A condition that is null holds for all.
((%(ids)s::bigint[] IS NULL AND %(event_ids)s::text[] IS NULL)
 OR d.id = ANY(%(ids)s::bigint[]) OR d.event_id = ANY(%(event_ids)s::text[]::uuid[]))
AND (%(event_type)s::text IS NULL OR d.event_type LIKE %(event_type)s::text)
AND (%(reason)s::text IS NULL OR d.reason = %(reason)s::text)
AND (%(older_than)s::interval IS NULL OR d.died_at < statement_timestamp() - %(older_than)s::interval)
AND (%(newer_than)s::interval IS NULL OR d.died_at >= statement_timestamp() - %(newer_than)s::interval)

-- dead_columns --
-- Fragment: what operators see of a dead letter: everything but what the message says.
d.id, d.event_id::text, d.event_type, d.ordering_key, d.exchange, d.routing_key, d.attempts, d.reason, d.last_error,
d.created_at, d.died_at

-- content_columns --
-- Fragment: what a stored message says, in the order of the fields of outbox.content.Content. JSON as text.
schema_version, aggregate_type, aggregate_id, payload, content_type, content_encoding, headers::text, properties::text,
declarations::text, context::text, dedup_key, expires_at, last_failed_at

-- replayed_columns --
-- Fragment: what a message keeps when it enters the outbox again. Its id is new: it goes to the end of its key.
event_id, schema_version, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload,
content_type, content_encoding, headers, properties, declarations, context, dedup_key

-- replay_dead --
-- Dead letters go back into the outbox, in their old order, as new rows of the relay with no attempt spent. A message
-- whose dedup_key is pending again (or is given twice) stays where it is: the outbox holds its successor. An expiry
-- that has passed is dropped, and a time to live begins anew: whoever replays an expired message wants it sent. Returns
-- how many were there, and how many went back.
WITH chosen AS MATERIALIZED (
    SELECT d.id, d.dedup_key FROM :"schema".outbox_dead_letter AS d WHERE d.id = ANY(%(ids)s::bigint[])
), gone AS (
    DELETE FROM :"schema".outbox_dead_letter
     WHERE id = ANY(ARRAY(
           SELECT max(c.id) FROM chosen AS c
            WHERE c.dedup_key IS NULL
               OR NOT EXISTS (SELECT 1 FROM :"schema".outbox AS o WHERE o.dedup_key = c.dedup_key)
            GROUP BY coalesce('key ' || c.dedup_key, 'id ' || c.id)))
    RETURNING *
), replayed AS (
    INSERT INTO :"schema".outbox (:replayed_columns, created_at, expires_at)
    SELECT :replayed_columns,
           CASE WHEN properties::text LIKE '%%"expiration"%%' THEN clock_timestamp() ELSE created_at END,
           CASE WHEN expires_at > clock_timestamp() THEN expires_at END
      FROM gone ORDER BY id
)
SELECT (SELECT count(*) FROM chosen), (SELECT count(*) FROM gone);

-- newest_dead_letter --
-- The end of a walk: a message that dies again meanwhile comes back with a new id, and must not be met twice.
SELECT coalesce(max(id), 0) FROM :"schema".outbox_dead_letter;

-- discard_dead --
-- Dead letters are deleted for good.
DELETE FROM :"schema".outbox_dead_letter WHERE id = ANY(%(ids)s::bigint[]) RETURNING id;

-- dead_outlines --
-- A walk over dead letters, in the order of their ids: what the fingerprint of a failure is made of. One batch.
SELECT d.id, d.reason, d.event_type, d.last_error, d.died_at
  FROM :"schema".outbox_dead_letter AS d
 WHERE d.id > %(after)s AND d.id <= %(up_to)s AND :dead_selected
 ORDER BY d.id
 LIMIT %(batch_size)s;

-- dead_letters --
-- Dead letters, the newest first: a page, before a place in that order where one is given.
SELECT :dead_columns
  FROM :"schema".outbox_dead_letter AS d
 WHERE :dead_selected
   AND (%(before)s::timestamptz IS NULL
        OR (d.died_at, d.id) < (%(before)s::timestamptz, %(before_id)s::bigint))
 ORDER BY d.died_at DESC, d.id DESC
 LIMIT %(batch_size)s;

-- dead_letter --
-- One dead letter, whole. An event_id can have died twice: the later one.
SELECT :dead_columns, :content_columns FROM :"schema".outbox_dead_letter AS d WHERE :dead_selected
 ORDER BY d.id DESC LIMIT 1;

-- pending_selected --
-- Fragment: which messages of the outbox an operator means. A condition that is null (or false) holds for all.
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
-- Fragment: an earlier message of the key is still here.
(o.ordering_key IS NOT NULL AND EXISTS (
    SELECT 1 FROM :"schema".outbox AS head WHERE head.ordering_key = o.ordering_key AND head.id < o.id))

-- pending_columns --
-- Fragment: what operators see of a message that waits. A lease that has run out leaves the row due. Python has no
-- infinite datetime: a parked row has no next attempt.
o.id, o.event_id::text, o.event_type, o.ordering_key, o.exchange, o.routing_key, o.attempts, o.owner,
CASE WHEN o.next_attempt_at = 'infinity' THEN 'parked'
     WHEN o.next_attempt_at <= statement_timestamp() THEN 'due'
     WHEN o.claimed_by IS NOT NULL THEN 'claimed'
     WHEN o.owner = 'relay' THEN 'relay'
     ELSE 'waiting' END,
:behind_head, CASE WHEN isfinite(o.next_attempt_at) THEN o.next_attempt_at END, o.claimed_by, o.last_error, o.created_at

-- pending_messages --
-- A walk over messages that wait, the oldest first. One batch.
SELECT :pending_columns FROM :"schema".outbox AS o
 WHERE o.id > %(after)s AND o.id <= %(up_to)s AND :pending_selected
 ORDER BY o.id
 LIMIT %(batch_size)s;

-- pending_message --
-- One message that waits, whole. An event_id can be there twice (a replay): the later one.
SELECT :pending_columns, :content_columns FROM :"schema".outbox AS o WHERE :pending_selected
 ORDER BY o.id DESC LIMIT 1;

-- retry_now --
-- Messages fall due, for the scheduler. Not those that a scheduler holds (or whose row anybody holds at this moment),
-- nor those behind the head of their key; one that was due before keeps its place. Returns the ids that are due now.
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

-- enqueued_id --
-- The row of a message that was enqueued after the newest one was looked up: no index knows event_ids.
SELECT id FROM :"schema".outbox WHERE id > %(after)s AND event_id = %(event_id)s::text::uuid;

-- fate --
-- What became of a message: why it died (null while it is pending), its attempts and last error. No row: delivered.
SELECT NULL, attempts, last_error FROM :"schema".outbox WHERE id = %(id)s
UNION ALL
SELECT reason, attempts, last_error FROM :"schema".outbox_dead_letter WHERE id = %(id)s;

-- stream_headers --
-- Fragment: an event of a stream says which, and its place there. Text, not jsonb: headers come out as they went in.
'{"stream":' || to_json(e.stream)::text || ',"stream_version":' || e.version

-- own_headers --
-- Fragment: the rest of a JSON object that was begun, with what the event's own headers hold.
CASE WHEN e.headers ~ '^\s*\{\s*\}\s*$' THEN '}' ELSE ',' || substr(ltrim(e.headers, E' \t\r\n'), 2) END

-- append_events --
-- Events enter the log of their stream and the outbox. The first row is the lock: whoever has written version n + 1 is
-- the only one who can write n + 2, so either all events are appended or none. Without RETURNING on the outbox: the
-- producer may not read it. Returns the version that this statement saw, and whether the events were appended.
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
           e.routing_key, e.payload, e.content_type, e.content_encoding, (:stream_headers || :own_headers)::json, %(context)s::text::json
      FROM first CROSS JOIN events AS e
     ORDER BY e.position
)
SELECT head.version, EXISTS (SELECT 1 FROM first) FROM head;

-- stream_version --
-- How far a stream has come; 0 where there is none.
SELECT coalesce(max(version), 0) FROM :"schema".outbox_event WHERE stream = %(stream)s::text;

-- load_events --
-- The events of a stream after a version, in order.
SELECT stream, version, event_id::text, event_type, payload, content_type, content_encoding, headers::text, created_at
  FROM :"schema".outbox_event
 WHERE stream = %(stream)s::text AND version > %(after)s::text::bigint
 ORDER BY version
 LIMIT %(limit)s::text::bigint;

-- replayed_event --
-- Fragment: an event of the log as it goes through the outbox once more, with a header that says so.
INSERT INTO :"schema".outbox (
    event_id, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key, payload, content_type,
    content_encoding, headers)
SELECT e.event_id, e.event_type, nullif(split_part(e.stream, ':', 1), e.stream),
       nullif(substr(e.stream, length(split_part(e.stream, ':', 1)) + 2), ''), e.stream, %(exchange)s::text,
       coalesce(%(routing_key)s::text, e.event_type), e.payload, e.content_type, e.content_encoding,
       (:stream_headers || ',"replayed": true' || :own_headers)::json

-- replay_events --
-- Events of the log go through the outbox once more. In the order of their time, but never against the order of a
-- stream's versions, even where the clock was set back in between.
:replayed_event
  FROM (SELECT stream, version, event_id, event_type, payload, content_type, content_encoding,
               headers::text AS headers,
               max(created_at) OVER (PARTITION BY stream ORDER BY version) AS in_order
          FROM :"schema".outbox_event
         WHERE (%(stream)s::text IS NULL OR stream = %(stream)s::text)
           AND (%(event_type)s::text IS NULL OR event_type = %(event_type)s::text)
           AND (%(since)s::text IS NULL OR created_at >= %(since)s::text::timestamptz)
           AND (%(until)s::text IS NULL OR created_at < %(until)s::text::timestamptz)
           AND version > %(after)s::text::bigint) AS e
 ORDER BY e.in_order, e.stream, e.version;

-- log_selected --
-- Fragment: which events of the log an operator means.
(%(stream)s::text IS NULL OR e.stream = %(stream)s::text)
AND (%(event_type)s::text IS NULL OR e.event_type LIKE %(event_type)s::text)
AND (%(since)s::timestamptz IS NULL OR e.created_at >= %(since)s::timestamptz)
AND (%(until)s::timestamptz IS NULL OR e.created_at < %(until)s::timestamptz)
AND e.version > %(after)s::bigint

-- logged_types --
-- How many events of which types a replay would send, and from when to when they are.
SELECT e.event_type, count(*), min(e.created_at), max(e.created_at) FROM :"schema".outbox_event AS e
 WHERE :log_selected
 GROUP BY e.event_type ORDER BY count(*) DESC, e.event_type;

-- logged_keys --
-- Which events a replay sends, in the order of replay_events. For a cursor.
SELECT e.stream, e.version FROM :"schema".outbox_event AS e
 WHERE :log_selected
 ORDER BY max(e.created_at) OVER (PARTITION BY e.stream ORDER BY e.version), e.stream, e.version;

-- replay_logged --
-- These events of the log go through the outbox once more, in this order. Returns how many were still there.
WITH replayed AS (
    :replayed_event
      FROM (SELECT k.position, l.stream, l.version, l.event_id, l.event_type, l.payload, l.content_type,
                   l.content_encoding, l.headers::text AS headers
              FROM unnest(%(streams)s::text[], %(versions)s::bigint[]) WITH ORDINALITY AS k (stream, version, position)
              JOIN :"schema".outbox_event AS l ON l.stream = k.stream AND l.version = k.version) AS e
     ORDER BY e.position
    RETURNING id
)
SELECT count(*) FROM replayed;

-- archive_selected --
-- Fragment: which delivered messages an operator means. The stream of an event is its ordering key.
(%(stream)s::text IS NULL OR e.ordering_key = %(stream)s::text)
AND (%(event_type)s::text IS NULL OR e.event_type LIKE %(event_type)s::text)
AND (%(since)s::timestamptz IS NULL OR e.delivered_at >= %(since)s::timestamptz)
AND (%(until)s::timestamptz IS NULL OR e.delivered_at < %(until)s::timestamptz)

-- archived_types --
-- As logged_types, of the archive and its time of delivery.
SELECT e.event_type, count(*), min(e.delivered_at), max(e.delivered_at) FROM :"schema".outbox_archive AS e
 WHERE :archive_selected
 GROUP BY e.event_type ORDER BY count(*) DESC, e.event_type;

-- archived_keys --
-- Which archived messages a replay sends, in the order in which they were enqueued. For a cursor.
SELECT e.id FROM :"schema".outbox_archive AS e WHERE :archive_selected ORDER BY e.id;

-- replay_archived --
-- These archived messages go through the outbox once more, where they went then or as told, with a header that says so.
-- They are as old as their replay: what they have of a time to live begins anew. Returns how many were still there.
WITH replayed AS (
    INSERT INTO :"schema".outbox (
        event_id, schema_version, event_type, aggregate_type, aggregate_id, ordering_key, exchange, routing_key,
        payload, content_type, content_encoding, headers, properties, declarations, context)
    SELECT e.event_id, e.schema_version, e.event_type, e.aggregate_type, e.aggregate_id, e.ordering_key,
           coalesce(%(exchange)s::text, e.exchange), coalesce(%(routing_key)s::text, e.routing_key),
           e.payload, e.content_type, e.content_encoding, ('{"replayed": true' || :own_headers)::json,
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

-- drain --
-- For tests of applications: every message leaves, in order, whoever owns it.
WITH gone AS (DELETE FROM :"schema".outbox RETURNING *)
SELECT :message_columns FROM gone AS o ORDER BY o.id;

-- watch_sent --
-- Delivered messages since a place in the archive. The lag lets statements that began earlier commit: read once, told
-- once.
SELECT id, event_id::text, event_type, attempts, delivered_at
  FROM :"schema".outbox_archive
 WHERE (delivered_at, id) > (%(since)s::timestamptz, %(after)s::bigint)
   AND delivered_at < clock_timestamp() - %(lag_seconds)s * interval '1 second'
 ORDER BY delivered_at, id
 LIMIT %(batch_size)s;

-- watch_failed --
-- Messages whose last failure is since then. One that fails again is found again; one that got through meanwhile is not.
SELECT id, event_id::text, event_type, attempts, last_failed_at, last_error
  FROM :"schema".outbox
 WHERE (last_failed_at, id) > (%(since)s::timestamptz, %(after)s::bigint)
   AND last_failed_at < clock_timestamp() - %(lag_seconds)s * interval '1 second'
 ORDER BY last_failed_at, id
 LIMIT %(batch_size)s;

-- watch_dead --
-- Messages that were buried since then.
SELECT id, event_id::text, event_type, attempts, died_at, last_error, reason
  FROM :"schema".outbox_dead_letter
 WHERE (died_at, id) > (%(since)s::timestamptz, %(after)s::bigint)
   AND died_at < clock_timestamp() - %(lag_seconds)s * interval '1 second'
 ORDER BY died_at, id
 LIMIT %(batch_size)s;

-- watch_from --
-- Where a watcher begins.
SELECT clock_timestamp();

-- watch_lock --
-- One watcher of an outbox tells; the others stand by until its session ends.
SELECT pg_try_advisory_lock(hashtextextended('outbox signals ' || %(schema)s::text, 0));

-- time_limit --
-- Looking at the outbox must not cost it much: what follows in this transaction ends after so long.
SELECT set_config('statement_timeout', %(milliseconds)s::text, true);

-- state_moment --
-- Of what and when a picture was taken.
SELECT clock_timestamp() AS at, current_database()::text AS database;

-- state_queues --
-- What is in the outbox and what it waits for, at a bounded cost: no count looks at more than `most` rows, so that one
-- of `most` means at least that. Where one of them is full, pending is the planner's estimate if that is higher.
WITH RECURSIVE due AS MATERIALIZED (
    SELECT next_attempt_at, attempts FROM :"schema".outbox
     WHERE next_attempt_at <= statement_timestamp()
     ORDER BY next_attempt_at LIMIT %(most)s
), waiting AS MATERIALIZED (
    SELECT owner, claimed_by, attempts FROM :"schema".outbox
     WHERE next_attempt_at > statement_timestamp() AND next_attempt_at < 'infinity'
     ORDER BY next_attempt_at LIMIT %(most)s
), parked AS MATERIALIZED (
    SELECT attempts FROM :"schema".outbox
     WHERE next_attempt_at = 'infinity'
     ORDER BY ordering_key, id LIMIT %(most)s
), k (ordering_key) AS (
    (SELECT ordering_key FROM :"schema".outbox
      WHERE next_attempt_at = 'infinity'
      ORDER BY ordering_key LIMIT 1)
    UNION ALL
    SELECT (SELECT o.ordering_key FROM :"schema".outbox AS o
             WHERE o.next_attempt_at = 'infinity' AND o.ordering_key > k.ordering_key
             ORDER BY o.ordering_key LIMIT 1)
      FROM k WHERE k.ordering_key IS NOT NULL
), counted AS (
    SELECT (SELECT count(*) FROM due) AS due,
           (SELECT count(*) FROM waiting) AS waiting,
           (SELECT count(*) FROM parked) AS parked
)
SELECT CASE WHEN greatest(due, waiting, parked) < %(most)s THEN due + waiting + parked
            ELSE greatest(due + waiting + parked, (SELECT c.reltuples::bigint FROM pg_class AS c
                                                     JOIN pg_namespace AS n ON n.oid = c.relnamespace
                                                    WHERE n.nspname = :'schema' AND c.relname = 'outbox')) END
           AS pending,
       due,
       (SELECT count(*) FROM waiting WHERE owner = 'relay') AS with_relay,
       (SELECT count(*) FROM waiting WHERE claimed_by IS NOT NULL) AS claimed,
       (SELECT count(*) FROM waiting WHERE owner = 'scheduler' AND claimed_by IS NULL AND attempts = 0) AS delayed,
       (SELECT count(*) FROM (SELECT attempts FROM due UNION ALL SELECT attempts FROM waiting
                              UNION ALL SELECT attempts FROM parked) AS tried WHERE attempts > 0) AS retrying,
       parked,
       (SELECT count(*) FROM (SELECT 1 FROM k WHERE ordering_key IS NOT NULL LIMIT %(most)s) AS b) AS blocked_keys,
       (SELECT extract(epoch FROM clock_timestamp() - o.created_at)::float8
          FROM (SELECT created_at FROM :"schema".outbox ORDER BY id LIMIT 1) AS o) AS oldest_seconds,
       (SELECT extract(epoch FROM clock_timestamp() - min(next_attempt_at))::float8 FROM due) AS overdue_seconds
  FROM counted;

-- state_dead --
-- How many dead letters there are, and of the newest `most` how many for which reason.
SELECT CASE WHEN seen < %(most)s THEN seen
            ELSE greatest(seen, (SELECT c.reltuples::bigint FROM pg_class AS c
                                   JOIN pg_namespace AS n ON n.oid = c.relnamespace
                                  WHERE n.nspname = :'schema' AND c.relname = 'outbox_dead_letter')) END AS total,
       by_reason
  FROM (SELECT coalesce(sum(r.dead), 0)::bigint AS seen, coalesce(jsonb_object_agg(r.reason, r.dead), '{}') AS by_reason
          FROM (SELECT d.reason, count(*) AS dead
                  FROM (SELECT reason FROM :"schema".outbox_dead_letter ORDER BY died_at DESC LIMIT %(most)s) AS d
                 GROUP BY d.reason) AS r) AS newest;

-- state_archive --
-- How many delivered messages are kept: exact below `most`, the planner's estimate beyond.
SELECT CASE WHEN seen < %(most)s THEN seen
            ELSE greatest(seen, (SELECT c.reltuples::bigint FROM pg_class AS c
                                   JOIN pg_namespace AS n ON n.oid = c.relnamespace
                                  WHERE n.nspname = :'schema' AND c.relname = 'outbox_archive')) END AS total
  FROM (SELECT count(*) AS seen
          FROM (SELECT 1 FROM :"schema".outbox_archive ORDER BY delivered_at LIMIT %(most)s) AS a) AS kept;

-- state_workers --
-- Who has told that it lives, the last seen first among those of a kind.
SELECT kind, name, role, host, pid, version, started_at, last_seen_at,
       greatest(0, extract(epoch FROM clock_timestamp() - last_seen_at))::float8 AS silent_seconds
  FROM :"schema".outbox_worker
 ORDER BY kind, last_seen_at DESC, name
 LIMIT %(most)s;

-- state_slot_lag --
-- How much WAL the slot has not confirmed; null on a standby.
SELECT CASE WHEN pg_is_in_recovery() THEN NULL
            ELSE greatest(0, pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn))::bigint END AS lag_bytes
  FROM pg_replication_slots AS s
 WHERE s.slot_name = %(slot)s;

-- doctor_limits --
-- What the server's configuration says about replication and vacuum, beside server_facts.
SELECT (SELECT setting::float8 / 1000 FROM pg_settings WHERE name = 'wal_sender_timeout') AS wal_sender_timeout_seconds,
       (SELECT nullif(setting::bigint, -1) * 1048576 FROM pg_settings WHERE name = 'max_slot_wal_keep_size')
           AS max_slot_wal_keep_bytes,
       current_setting('autovacuum')::bool AND current_setting('track_counts')::bool AS autovacuum;

-- doctor_replication_use --
-- How many slots and WAL senders are taken, and how many of the senders feed a standby or a backup.
SELECT (SELECT count(*) FROM pg_replication_slots) AS slots,
       (SELECT count(*) FROM pg_stat_replication) AS senders,
       (SELECT count(*) FROM pg_stat_replication AS r
         WHERE NOT EXISTS (SELECT 1 FROM pg_replication_slots AS s
                            WHERE s.active_pid = r.pid AND s.slot_type = 'logical')) AS standbys;

-- doctor_replication_role --
-- May this role replicate: by its attribute, or on RDS by its membership.
SELECT r.rolreplication OR r.rolsuper OR EXISTS (
           SELECT 1 FROM pg_roles AS m
            WHERE m.rolname = 'rds_replication' AND pg_has_role(r.oid, m.oid, 'MEMBER')) AS may_replicate
  FROM pg_roles AS r
 WHERE r.rolname = %(role)s;

-- doctor_system --
-- Which server this is: the same number on the replication connection means the same server.
SELECT system_identifier::text FROM pg_control_system();

-- doctor_ages --
-- Is the publication older than what the slot can still read? In transactions since then; null where there is no slot.
SELECT least(age(p.xmin), (SELECT min(age(r.xmin)) FROM pg_publication_rel AS r WHERE r.prpubid = p.oid))
           AS publication_age,
       (SELECT age(s.catalog_xmin) FROM pg_replication_slots AS s WHERE s.slot_name = %(slot)s) AS slot_age
  FROM pg_publication AS p
 WHERE p.pubname = %(publication)s;

-- doctor_indexes --
-- The indexes of the outbox's tables that can be used.
SELECT i.relname::text AS name
  FROM pg_index AS x
  JOIN pg_class AS i ON i.oid = x.indexrelid
  JOIN pg_class AS t ON t.oid = x.indrelid
  JOIN pg_namespace AS n ON n.oid = t.relnamespace
 WHERE n.nspname = %(schema)s AND x.indisvalid;

-- doctor_vacuum --
-- Does vacuum keep up with the outbox?
SELECT s.n_dead_tup AS dead_rows,
       coalesce((SELECT o.option_value::bool FROM pg_options_to_table(c.reloptions) AS o
                  WHERE o.option_name = 'autovacuum_enabled'), true) AS enabled
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_stat_all_tables AS s ON s.relid = c.oid
 WHERE n.nspname = %(schema)s AND c.relname = 'outbox';

-- doctor_oldest_transaction --
-- Who keeps vacuum from removing dead rows of this database for longest, and how many sessions hide that from this role.
SELECT oldest.holder, oldest.seconds,
       (SELECT count(*) FROM pg_stat_activity AS a
         WHERE a.datname = current_database()
           AND NOT pg_has_role('pg_read_all_stats', 'USAGE')
           AND NOT pg_has_role(a.usesysid, 'USAGE')) AS hidden
  FROM (SELECT 1) AS always
  LEFT JOIN (
       SELECT h.holder, h.seconds
         FROM (SELECT concat('process ', a.pid, ' (', coalesce(nullif(a.application_name, ''), a.usename), ', ',
                             a.state, ')') AS holder,
                      extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
                 FROM pg_stat_activity AS a
                WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
                  AND a.backend_type <> 'walsender'
                  AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
               UNION ALL
               SELECT concat('prepared transaction ', p.gid),
                      extract(epoch FROM clock_timestamp() - p.prepared)::float8
                 FROM pg_prepared_xacts AS p
                WHERE p.database = current_database()) AS h
        WHERE h.seconds IS NOT NULL
        ORDER BY h.seconds DESC
        LIMIT 1) AS oldest ON true;

-- doctor_roles --
-- Which of these roles exist.
SELECT r.rolname::text AS name FROM pg_roles AS r WHERE r.rolname = ANY(%(names)s::text[]);

-- doctor_missing_grants --
-- Which of these privileges the roles lack; the table is null for the schema itself.
SELECT DISTINCT g.role, g.relation, g.privilege
  FROM unnest(%(roles)s::text[], %(relations)s::text[], %(privileges)s::text[]) AS g (role, relation, privilege)
  JOIN pg_roles AS r ON r.rolname = g.role
  JOIN pg_namespace AS n ON n.nspname = %(schema)s
  LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = g.relation
 WHERE CASE WHEN g.relation IS NULL THEN NOT has_schema_privilege(r.oid, n.oid, g.privilege)
            ELSE NOT has_table_privilege(r.oid, c.oid, g.privilege) END
 ORDER BY g.role, g.relation NULLS FIRST, g.privilege;

-- doctor_exchanges --
-- Which exchanges the rows that fall due first go to, and what these rows declare themselves. Bounded in both.
SELECT r.exchange, r.declarations
  FROM (SELECT exchange, declarations::text AS declarations FROM :"schema".outbox
         ORDER BY next_attempt_at LIMIT %(most)s) AS r
 GROUP BY r.exchange, r.declarations
 LIMIT %(groups)s;
