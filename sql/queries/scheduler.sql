-- Run by the scheduler (outrider/storage/scheduler_queries.py): claims, and the maintenance tasks.

-- claim_due --
-- Lease due rows to one scheduler. MATERIALIZED keeps LIMIT exact: the planner must not run the subquery twice. An
-- ordered row is claimed only if every earlier row of its key is claimed with it: the n-th due row of the key must be
-- the n-th row of the key in the table. The other due rows of a key are parked, so that later claims do not read them
-- again. Of the rows that could be claimed, in the order of their ids, only as many are as have together at most
-- batch_bytes, and at least one. The rest stays due. Sizes are known before any payload is read: octet_length of a
-- bytea reads only its header. statement_timestamp() is stable and so can be an index condition; with the volatile
-- clock_timestamp() every claim would walk over all rows that are not due. Ids go through arrays, which the planner
-- looks up by primary key at any size. Returns at least one row: the number of parked rows, and the columns of a claimed
-- row (null if none was claimed).
WITH due AS MATERIALIZED (
    SELECT id, ordering_key, :message_bytes AS size FROM :"schema".outbox AS o
     WHERE next_attempt_at <= statement_timestamp()
       AND :supported_version
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
), claimable AS MATERIALIZED (
    SELECT id, sum(size) OVER (ORDER BY id) <= %(batch_bytes)s OR row_number() OVER (ORDER BY id) = 1 AS fits
      FROM due
     WHERE ordering_key IS NULL OR id IN (SELECT id FROM heads)
), leased AS (
    UPDATE :"schema".outbox AS o
       SET owner = 'scheduler', claimed_by = %(claim)s, next_attempt_at = clock_timestamp() + %(lease)s
     WHERE o.id = ANY(ARRAY(SELECT id FROM claimable WHERE fits))
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
-- Seconds until the next row falls due; negative if it is overdue, null if there is none or only parked rows.
SELECT extract(epoch FROM min(next_attempt_at) - clock_timestamp())::float8
  FROM :"schema".outbox
 WHERE next_attempt_at < 'infinity' AND :supported_version;

-- defer --
-- Let claimed rows wait for the cooldown after a broker outage. No attempt is spent.
UPDATE :"schema".outbox AS o
   SET claimed_by = NULL, next_attempt_at = clock_timestamp() + %(cooldown)s
 WHERE o.id = ANY(%(ids)s::bigint[]) AND o.claimed_by = %(claim)s
RETURNING o.id;

-- release --
-- Make claimed rows that were not sent due again (shutdown, short lease, or an earlier row of their key failed). The
-- next claim parks those that are still behind the head of their key.
UPDATE :"schema".outbox AS o
   SET claimed_by = NULL, next_attempt_at = clock_timestamp()
 WHERE o.id = ANY(%(ids)s::bigint[]) AND o.claimed_by = %(claim)s
RETURNING o.id;

-- unpark_heads --
-- Make every parked row that has become the head of its key due: rows that unpark_followers missed, or whose service
-- crashed. For the array and isfinite see unpark_followers.
WITH RECURSIVE :keys_with_parked_rows
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
-- Bury messages past their expires_at, except rows that a scheduler has claimed or the relay may be sending. One batch;
-- a full batch means that there may be more.
WITH doomed AS MATERIALIZED (
    SELECT *, 'expired' AS reason, NULL AS error, 0 AS spent FROM :"schema".outbox
     WHERE expires_at <= statement_timestamp()
       AND ((owner = 'scheduler' AND claimed_by IS NULL) OR next_attempt_at <= statement_timestamp())
       AND :supported_version
     ORDER BY expires_at
     LIMIT %(batch_size)s
       FOR UPDATE SKIP LOCKED
), :dead_rows, :unpark_followers
SELECT event_type FROM gone;

-- prune_archive --
-- Delete delivered messages past their retention, the oldest first. One batch; a full batch means that there may be
-- more. No row lock: it would need the UPDATE privilege.
DELETE FROM :"schema".outbox_archive
 WHERE id = ANY(ARRAY(
       SELECT id FROM :"schema".outbox_archive
        WHERE delivered_at < statement_timestamp() - %(retention)s::interval
        ORDER BY delivered_at
        LIMIT %(batch_size)s))
RETURNING id;

-- prune_dead_letters --
-- Delete dead letters past their retention. As prune_archive.
DELETE FROM :"schema".outbox_dead_letter
 WHERE id = ANY(ARRAY(
       SELECT id FROM :"schema".outbox_dead_letter
        WHERE died_at < statement_timestamp() - %(retention)s::interval
        ORDER BY died_at
        LIMIT %(batch_size)s))
RETURNING id;

-- prune_inbox --
-- Delete marks of processed events past their retention. As prune_archive; by ctid, because a mark is never updated.
DELETE FROM :"schema".outbox_inbox
 WHERE ctid = ANY(ARRAY(
       SELECT ctid FROM :"schema".outbox_inbox
        WHERE processed_at < statement_timestamp() - %(retention)s::interval
        ORDER BY processed_at
        LIMIT %(batch_size)s))
RETURNING 1;

-- forget_workers --
-- Delete the presence rows of services that were killed. A service that stops deletes its own.
DELETE FROM :"schema".outbox_worker
 WHERE last_seen_at < statement_timestamp() - %(unseen)s::interval
RETURNING 1;

-- sample --
-- The gauges: the numbers of `outrider status`.
SELECT q.pending, q.retrying, q.parked, q.unsupported,
       (SELECT CASE WHEN count(*) < %(most)s THEN count(*)
                    ELSE greatest(count(*), :estimated_dead) END
          FROM (SELECT 1 FROM :"schema".outbox_dead_letter ORDER BY died_at LIMIT %(most)s) AS d) AS dead,
       coalesce(q.oldest_seconds, 0), coalesce(q.overdue_seconds, 0)
  FROM (:queue_counts) AS q;
