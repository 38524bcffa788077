-- Hand rows from before the slot existed over to the scheduler: the slot does not have them. Run right after slot.sql.
--     psql -v schema=public -f sql/setup/hand_over.sql
UPDATE :"schema".outbox SET owner = 'scheduler', next_attempt_at = clock_timestamp() WHERE owner = 'relay';
