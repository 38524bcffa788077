-- Run by `outrider setup`, `outrider teardown`, the Alembic and Django migrations, and by the services when they check
-- the database at start.

-- server_facts --
-- The server's settings and the privileges of the current role.
SELECT current_setting('server_version_num')::int AS server_version,
       current_setting('wal_level') AS wal_level,
       current_setting('max_replication_slots')::int AS max_replication_slots,
       current_setting('max_wal_senders')::int AS max_wal_senders,
       pg_is_in_recovery() AS in_recovery,
       current_user::text AS role,
       (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user) AS may_replicate,
       current_database()::text AS database;

-- applied_migrations --
-- The migrations that this schema has.
SELECT version FROM :"schema".outbox_migration ORDER BY version;

-- schema_tables --
-- The tables of the outbox that the schema has; none before the first set-up.
SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p')
   AND c.relname IN ('outbox', 'outbox_dead_letter', 'outbox_archive', 'outbox_event', 'outbox_inbox',
                     'outbox_worker', 'outbox_migration', 'outbox_epoch', 'outbox_snapshot', 'outbox_subject_key');

-- publication_shape --
-- What the publication publishes; no row when it does not exist.
SELECT p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate,
       coalesce(array_agg(t.schemaname || '.' || t.tablename ORDER BY 1) FILTER (WHERE t.tablename IS NOT NULL), '{}')
           AS tables
  FROM pg_publication AS p
  LEFT JOIN pg_publication_tables AS t ON t.pubname = p.pubname
 WHERE p.pubname = %(publication)s
 GROUP BY p.oid, p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate;

-- publication_has_column_list --
-- Whether the publication leaves out columns, so that the relay would read incomplete messages. to_jsonb, because
-- PostgreSQL 14 has no column lists.
SELECT coalesce(bool_or(to_jsonb(r) ->> 'prattrs' IS NOT NULL), false)
  FROM pg_publication AS p JOIN pg_publication_rel AS r ON r.prpubid = p.oid
 WHERE p.pubname = %(publication)s;

-- slot_state --
-- The replication slot; no row when it does not exist. to_jsonb, because newer servers have more columns
-- (invalidation_reason, conflicting, failover).
SELECT s.slot_name AS name, s.plugin, s.database, s.active, s.active_pid, s.wal_status,
       s.restart_lsn::text, s.confirmed_flush_lsn::text,
       to_jsonb(s) ->> 'invalidation_reason' AS invalidation_reason,
       coalesce((to_jsonb(s) ->> 'conflicting')::boolean, false) AS conflicting,
       coalesce((to_jsonb(s) ->> 'failover')::boolean, false) AS failover,
       pg_wal_lsn_diff(wal.end_lsn, s.restart_lsn)::bigint AS retained_bytes,
       CASE WHEN wal.end_lsn IS NOT NULL
            THEN greatest(0, pg_wal_lsn_diff(wal.end_lsn, s.confirmed_flush_lsn))::bigint END AS lag_bytes,
       s.safe_wal_size AS safe_wal_bytes
  FROM pg_replication_slots AS s,
       (SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn() END AS end_lsn) AS wal
 WHERE s.slot_name = %(slot)s;

-- setup_lock --
-- One set-up of a schema at a time. A transaction lock: it ends with a crash, and works through a pooler.
SELECT pg_advisory_xact_lock(hashtextextended('outbox setup ' || %(schema)s, 0));

-- handover_seconds --
-- How long the relay owns a new row, from the default of next_attempt_at; null when the default has another form.
SELECT extract(epoch FROM substring(pg_get_expr(d.adbin, d.adrelid) FROM '''(.+)''::interval')::interval)::float8
  FROM pg_attrdef AS d
  JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
  JOIN pg_class AS c ON c.oid = d.adrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s AND c.relname = 'outbox' AND a.attname = 'next_attempt_at';

-- log_origin --
-- Whether the current epoch of the log began on another server. No row: the log is empty, and its order in no danger.
SELECT o.system_identifier AS log_server, c.system_identifier::text AS this_server
  FROM pg_control_system() AS c
 CROSS JOIN (SELECT system_identifier FROM :"schema".outbox_epoch ORDER BY epoch DESC LIMIT 1) AS o
 WHERE EXISTS (SELECT 1 FROM :"schema".outbox_event);

-- kept_rows --
-- What dropping the tables would delete: undelivered messages, dead letters, archived messages, events, inbox marks.
SELECT (SELECT count(*) FROM :"schema".outbox),
       (SELECT count(*) FROM :"schema".outbox_dead_letter),
       (SELECT count(*) FROM :"schema".outbox_archive),
       (SELECT count(*) FROM :"schema".outbox_event),
       (SELECT count(*) FROM :"schema".outbox_inbox);
