-- The replication slot from which the relay reads. Rows committed before it exists are left to the scheduler.
--     psql -v slot=outbox -f sql/setup/slot.sql
-- Needs: wal_level = logical, a role with REPLICATION, and the publication to exist already.
-- Waits for the end of the transactions that are running now.
SELECT slot_name, lsn FROM pg_create_logical_replication_slot(:'slot', 'pgoutput');
