-- Migration 2: a row without an ordering key cannot be parked. Only unpark_heads makes parked rows due again, and it looks
-- for keys: such a row would never be sent.
--
-- Locks: ACCESS EXCLUSIVE on outbox, for an instant: NOT VALID checks new and changed rows and reads none. Migration 3
-- checks the rows that are there, under a weaker lock: run it in a transaction of its own, as `outrider setup` and
-- `manage.py migrate` do. While the lock is waited for, producers wait behind it, so the wait is limited. A transaction
-- that holds the table for longer makes this migration fail without effect: end that transaction, and run it again.
SELECT set_config('outrider.lock_timeout', current_setting('lock_timeout'), true);
SET LOCAL lock_timeout = '5s';

ALTER TABLE :"schema".outbox ADD CONSTRAINT "only a row with an ordering_key can be parked"
    CHECK (ordering_key IS NOT NULL OR next_attempt_at < 'infinity') NOT VALID;

INSERT INTO :"schema".outbox_migration (version, name) VALUES (2, 'parked_rows_need_a_key');

SELECT set_config('lock_timeout', current_setting('outrider.lock_timeout'), true);
