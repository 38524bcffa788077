-- Run by `outrider status` and by the services for /status: read-only, at a bounded cost.

-- time_limit --
-- Limit the run time of the queries that follow in this transaction.
SELECT set_config('statement_timeout', %(milliseconds)s::text, true);

-- state_moment --
-- The time and the database of this picture.
SELECT clock_timestamp() AS at, current_database()::text AS database;

-- state_queues --
-- The pending messages by state, at a bounded cost: each count reads at most `most` rows, so a count of `most` is a
-- lower bound. If one of them is, pending is the planner's estimate, but at least the sum of the counts. pending is the
-- sum of due, with_relay, claimed, delayed, backing_off and parked. The oldest message is looked for among the first
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
  FROM counted;

-- state_dead --
-- The number of dead letters, and of the newest `most` how many have which reason.
SELECT CASE WHEN seen < %(most)s THEN seen
            ELSE greatest(seen, :estimated_dead) END AS total,
       by_reason
  FROM (SELECT coalesce(sum(r.dead), 0)::bigint AS seen, coalesce(jsonb_object_agg(r.reason, r.dead), '{}') AS by_reason
          FROM (SELECT d.reason, count(*) AS dead
                  FROM (SELECT reason FROM :"schema".outbox_dead_letter ORDER BY died_at DESC LIMIT %(most)s) AS d
                 GROUP BY d.reason) AS r) AS newest;

-- state_archive --
-- The number of archived messages: exact below `most`, the planner's estimate above it.
SELECT CASE WHEN seen < %(most)s THEN seen
            ELSE greatest(seen, (SELECT c.reltuples::bigint FROM pg_class AS c
                                   JOIN pg_namespace AS n ON n.oid = c.relnamespace
                                  WHERE n.nspname = :'schema' AND c.relname = 'outbox_archive')) END AS total
  FROM (SELECT count(*) AS seen
          FROM (SELECT 1 FROM :"schema".outbox_archive ORDER BY delivered_at LIMIT %(most)s) AS a) AS kept;

-- state_workers --
-- The presence rows of all services, by kind, the last seen first.
SELECT kind, name, role, host, pid, version, started_at, last_seen_at,
       greatest(0, extract(epoch FROM clock_timestamp() - last_seen_at))::float8 AS silent_seconds
  FROM :"schema".outbox_worker
 ORDER BY kind, last_seen_at DESC, name
 LIMIT %(most)s;
