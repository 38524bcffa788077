-- Run by `outrider status` and by the services for /status: read-only, at a bounded cost.

-- time_limit --
-- Limit the run time of the queries that follow in this transaction.
SELECT set_config('statement_timeout', %(milliseconds)s::text, true);

-- state_moment --
-- The time and the database of this picture, and the server's timeline (null on a standby).
SELECT clock_timestamp() AS at, current_database()::text AS database,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END AS timeline;

-- state_queues --
-- The pending messages by state.
:queue_counts;

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

-- state_log --
-- The log of event streams: its epoch, the events that readers cannot see yet (at most `most` are counted), whether it
-- was restored from another server, and the session or prepared transaction, of any database, that holds readers back:
-- the one with the oldest transaction id. Its text is short where this role may not see more.
WITH :log_end
SELECT log_end.epoch,
       (SELECT count(*) FROM (
            SELECT 1 FROM :"schema".outbox_event AS e
             WHERE (e.epoch, e.transaction_id) >= (log_end.epoch, log_end.transaction_id) LIMIT %(most)s) AS u) AS unreadable,
       log_end.restored,
       oldest.holder AS held_back_by,
       oldest.seconds AS held_back_seconds
  FROM log_end
  LEFT JOIN LATERAL (
       SELECT h.holder, h.seconds
         FROM (SELECT age(a.backend_xid) AS transactions,
                      concat('process ', a.pid, ' (', concat_ws(', ', nullif(a.application_name, ''), a.usename, a.state,
                             a.backend_type, 'database ' || a.datname), ')') AS holder,
                      extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
                 FROM pg_stat_activity AS a
                WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
               UNION ALL
               SELECT age(p.transaction), concat('prepared transaction ', p.gid, ' (database ', p.database, ')'),
                      extract(epoch FROM clock_timestamp() - p.prepared)::float8
                 FROM pg_prepared_xacts AS p) AS h
        ORDER BY h.transactions DESC
        LIMIT 1) AS oldest ON true;
