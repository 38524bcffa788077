-- Rows from before the slot existed are the scheduler's: the slot saw nothing of them. Run it right after slot.sql.
--     psql -v schema=public -f sql/setup/hand_over.sql
UPDATE :"schema".outbox SET owner = 'scheduler', next_attempt_at = clock_timestamp() WHERE owner = 'relay';
