-- The replication slot on PostgreSQL 17 and newer, synchronised to standbys (see sync_replication_slots).
--     psql -v slot=outbox -f sql/setup/slot_failover.sql
SELECT slot_name, lsn
  FROM pg_create_logical_replication_slot(:'slot', 'pgoutput', temporary => false, twophase => false, failover => true);
