-- How long a new row is the relay's before the scheduler may take it: the default of next_attempt_at, so that every
-- producer in every language agrees. 0 makes a plain polling outbox that needs no relay.
--     psql -v schema=public -v handover_after='30 seconds' -f sql/setup/handover_after.sql
ALTER TABLE :"schema".outbox
    ALTER COLUMN next_attempt_at SET DEFAULT clock_timestamp() + interval :'handover_after';
