-- Run by both the relay and the scheduler (outrider/storage/service_queries.py): settle rows, and show presence.
-- %(claim)s is null when the relay acts, otherwise the claim of the scheduler.

-- held_by_caller --
-- Fragment: the row is still the caller's. A scheduler acts only on rows with its claim; the relay only on rows it
-- owns.
(o.claimed_by = %(claim)s::text OR (%(claim)s::text IS NULL AND o.owner = 'relay'))

-- settle --
-- Delete delivered rows, and unpark the rows behind them. Returns the ids that were there. The relay also deletes a row
-- that a scheduler has claimed meanwhile: it was delivered.
WITH gone AS (
    DELETE FROM :"schema".outbox AS o
     WHERE o.id = ANY(%(ids)s::bigint[])
       AND (%(claim)s::text IS NULL OR o.claimed_by = %(claim)s::text)
    RETURNING o.id, o.ordering_key
), :unpark_followers
SELECT id FROM gone;

-- settle_unfollowed --
-- As settle, without the look-up of rows behind them: for a relay that has no blocked key. A row that was parked
-- nevertheless is found by unpark_heads.
DELETE FROM :"schema".outbox AS o
 WHERE o.id = ANY(%(ids)s::bigint[])
   AND (%(claim)s::text IS NULL OR o.claimed_by = %(claim)s::text)
RETURNING o.id;

-- settle_to_archive --
-- As settle, but the rows move to the archive. ON CONFLICT, because an id that the archive already has (the ids of the
-- outbox were restarted) must not keep a delivered row in the outbox: it would be sent again and again.
WITH gone AS (
    DELETE FROM :"schema".outbox AS o
     WHERE o.id = ANY(%(ids)s::bigint[])
       AND (%(claim)s::text IS NULL OR o.claimed_by = %(claim)s::text)
    RETURNING o.*
), kept AS (
    INSERT INTO :"schema".outbox_archive (id, :moved_columns, attempts)
    SELECT id, :moved_columns, attempts FROM gone
    ON CONFLICT DO NOTHING
), :unpark_followers
SELECT id FROM gone;

-- fail --
-- Spend an attempt of a refused message and let it wait for its backoff. From its first failure on the scheduler owns
-- it.
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
-- Move messages to the dead letters, with the reason, and unpark the rows behind them. `spent` is 1 if the last attempt
-- counts. Returns the ids that were still the caller's, and whether each was moved: if not, another session took the id
-- of its dead letter at the same moment, and the next call finds a free one.
WITH doomed AS MATERIALIZED (
    SELECT o.*, d.reason, d.error, d.spent
      FROM unnest(%(ids)s::bigint[], %(reasons)s::text[], %(errors)s::text[], %(spent)s::int[])
           AS d (id, reason, error, spent)
      JOIN :"schema".outbox AS o ON o.id = d.id
     WHERE o.id = ANY(%(ids)s::bigint[])
       AND :held_by_caller
       FOR UPDATE OF o
), :dead_rows, :unpark_followers
SELECT doomed.id, gone.id IS NOT NULL FROM doomed LEFT JOIN gone ON gone.id = doomed.id;

-- backend_pid --
-- The process that runs this statement. Every connection is asked once: behind a pooler it is not the one that the client
-- was told at the start.
SELECT pg_backend_pid();

-- bookkeeping_limits --
-- Limits of the statements that follow in this transaction: presence, gauges, clean-up. A commit that is lost in a crash
-- is repeated by the next run. Per transaction, because a pooler may give the session to other clients afterwards.
SELECT set_config('lock_timeout', %(lock_milliseconds)s::text, true),
       set_config('statement_timeout', %(statement_milliseconds)s::text, true),
       set_config('synchronous_commit', 'off', true);

-- longest_statement --
-- The statement that has run for longest on another connection of this service, and what it waits for. A role sees its
-- own sessions without a privilege.
SELECT extract(epoch FROM clock_timestamp() - a.query_start)::float8, a.wait_event_type, a.wait_event
  FROM pg_stat_activity AS a
 WHERE a.application_name = current_setting('application_name')
   AND a.datname = current_database()
   AND a.backend_type = 'client backend'
   AND a.state = 'active'
   AND a.pid <> pg_backend_pid()
   AND a.query_start < clock_timestamp() - %(longer_than_seconds)s::float8 * interval '1 second'
 ORDER BY a.query_start
 LIMIT 1;

-- worker_seen --
-- Insert or refresh the presence row of a service. A new process under the same name gets a new started_at.
INSERT INTO :"schema".outbox_worker AS w (kind, name, role, version, host, pid)
VALUES (%(kind)s, %(name)s, %(role)s, %(version)s, %(host)s, %(pid)s)
ON CONFLICT (kind, name) DO UPDATE
   SET role = excluded.role, version = excluded.version, host = excluded.host, pid = excluded.pid,
       last_seen_at = clock_timestamp(),
       started_at = CASE WHEN w.pid = excluded.pid AND w.host = excluded.host THEN w.started_at
                         ELSE clock_timestamp() END;

-- worker_gone --
-- Delete the presence row of a service that stops.
DELETE FROM :"schema".outbox_worker WHERE kind = %(kind)s AND name = %(name)s;
