-- Run by `outrider doctor`, read-only, beside server_facts and the other queries of setup.sql.

-- doctor_limits --
-- The server's settings for replication and vacuum that server_facts does not have.
SELECT (SELECT setting::float8 / 1000 FROM pg_settings WHERE name = 'wal_sender_timeout') AS wal_sender_timeout_seconds,
       (SELECT nullif(setting::bigint, -1) * 1048576 FROM pg_settings WHERE name = 'max_slot_wal_keep_size')
           AS max_slot_wal_keep_bytes,
       current_setting('autovacuum')::bool AND current_setting('track_counts')::bool AS autovacuum;

-- doctor_replication_use --
-- How many slots and WAL senders are in use, and how many of the senders serve a standby or a backup.
SELECT (SELECT count(*) FROM pg_replication_slots) AS slots,
       (SELECT count(*) FROM pg_stat_replication) AS senders,
       (SELECT count(*) FROM pg_stat_replication AS r
         WHERE NOT EXISTS (SELECT 1 FROM pg_replication_slots AS s
                            WHERE s.active_pid = r.pid AND s.slot_type = 'logical')) AS standbys;

-- doctor_replication_role --
-- Whether this role may replicate: by its attribute, or on RDS by its membership.
SELECT r.rolreplication OR r.rolsuper OR EXISTS (
           SELECT 1 FROM pg_roles AS m
            WHERE m.rolname = 'rds_replication' AND pg_has_role(r.oid, m.oid, 'MEMBER')) AS may_replicate
  FROM pg_roles AS r
 WHERE r.rolname = %(role)s;

-- doctor_system --
-- The identity of the server: the replication connection must reach the same one.
SELECT system_identifier::text FROM pg_control_system();

-- doctor_prepared_statements --
-- The names of the prepared statements of this backend.
SELECT name FROM pg_prepared_statements;

-- doctor_promotion --
-- When the server's timeline began, from its history file, and a relay that has been running since before. Needs the
-- privileges of pg_monitor. The file's time is in whole seconds.
SELECT extract(epoch FROM clock_timestamp() - h.modification)::float8 AS seconds_ago,
       (SELECT w.name FROM :"schema".outbox_worker AS w
         WHERE w.kind = 'relay' AND w.started_at < h.modification + interval '1 second'
         ORDER BY w.started_at LIMIT 1) AS since_start_of
  FROM (SELECT 1) AS one
  LEFT JOIN pg_ls_waldir() AS h ON h.name = left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) || '.history';

-- doctor_clock --
-- How far the latest of the recorded times lies ahead of the clock: the newest row of the outbox, the services, the
-- start of the server. Negative or null unless the clock was set back.
SELECT extract(epoch FROM greatest(
           (SELECT created_at FROM :"schema".outbox ORDER BY id DESC LIMIT 1),
           (SELECT max(greatest(started_at, last_seen_at)) FROM :"schema".outbox_worker),
           pg_postmaster_start_time()) - clock_timestamp())::float8 AS ahead_seconds;

-- doctor_columns --
-- The columns of the outbox.
SELECT a.attname::text AS name
  FROM pg_attribute AS a
  JOIN pg_class AS t ON t.oid = a.attrelid
  JOIN pg_namespace AS n ON n.oid = t.relnamespace
 WHERE n.nspname = %(schema)s AND t.relname = 'outbox' AND a.attnum > 0 AND NOT a.attisdropped;

-- doctor_indexes --
-- The valid indexes of the outbox's tables.
SELECT i.relname::text AS name
  FROM pg_index AS x
  JOIN pg_class AS i ON i.oid = x.indexrelid
  JOIN pg_class AS t ON t.oid = x.indrelid
  JOIN pg_namespace AS n ON n.oid = t.relnamespace
 WHERE n.nspname = %(schema)s AND x.indisvalid;

-- doctor_vacuum --
-- The number of dead rows in the outbox, and whether autovacuum is enabled for it.
SELECT s.n_dead_tup AS dead_rows,
       coalesce((SELECT o.option_value::bool FROM pg_options_to_table(c.reloptions) AS o
                  WHERE o.option_name = 'autovacuum_enabled'), true) AS enabled
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_stat_all_tables AS s ON s.relid = c.oid
 WHERE n.nspname = %(schema)s AND c.relname = 'outbox';

-- doctor_oldest_transaction --
-- The session or prepared transaction that has kept vacuum from removing dead rows for longest, and the number of
-- sessions that this role may not see.
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
-- Those of these roles that exist.
SELECT r.rolname::text AS name FROM pg_roles AS r WHERE r.rolname = ANY(%(names)s::text[]);

-- doctor_missing_grants --
-- Those of these privileges that the roles do not have; a null relation is the schema itself.
SELECT DISTINCT g.role, g.relation, g.privilege
  FROM unnest(%(roles)s::text[], %(relations)s::text[], %(privileges)s::text[]) AS g (role, relation, privilege)
  JOIN pg_roles AS r ON r.rolname = g.role
  JOIN pg_namespace AS n ON n.nspname = %(schema)s
  LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = g.relation
 WHERE CASE WHEN g.relation IS NULL THEN NOT has_schema_privilege(r.oid, n.oid, g.privilege)
            ELSE NOT has_table_privilege(r.oid, c.oid, g.privilege) END
 ORDER BY g.role, g.relation NULLS FIRST, g.privilege;

-- doctor_exchanges --
-- The exchanges of the rows that fall due first, and what these rows declare. Both are bounded.
SELECT r.exchange, r.declarations
  FROM (SELECT exchange, declarations::text AS declarations FROM :"schema".outbox
         ORDER BY next_attempt_at LIMIT %(most)s) AS r
 GROUP BY r.exchange, r.declarations
 LIMIT %(groups)s;
