-- How long the relay owns a new row before the scheduler may claim it: the default of next_attempt_at, so that it holds
-- for every producer in every language. 0: a polling outbox that needs no relay.
--     psql -v schema=public -v handover_after='30 seconds' -f sql/setup/handover_after.sql
ALTER TABLE :"schema".outbox
    ALTER COLUMN next_attempt_at SET DEFAULT clock_timestamp() + interval :'handover_after';
