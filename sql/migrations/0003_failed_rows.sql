-- Migration 3: an index for watch_failed, and the rows that migration 2 did not check.
--
-- Locks, both without any effect on readers, and each waited for at most five seconds (see migration 2):
-- CREATE INDEX takes SHARE on outbox: producers and services wait while it reads the table once, about a second per
-- gigabyte. For a very large outbox, create the index before, without this lock; the migration then finds it:
--     CREATE INDEX CONCURRENTLY outbox_failed ON outbox (last_failed_at, id) WHERE last_failed_at IS NOT NULL;
-- VALIDATE CONSTRAINT takes SHARE UPDATE EXCLUSIVE, with which producers and services go on.
SELECT set_config('outrider.lock_timeout', current_setting('lock_timeout'), true);
SET LOCAL lock_timeout = '5s';

-- Rows from before migration 2 that would never be sent: due now. By the index outbox_parked.
UPDATE :"schema".outbox SET owner = 'scheduler', claimed_by = NULL, next_attempt_at = clock_timestamp()
 WHERE next_attempt_at = 'infinity' AND ordering_key IS NULL;
ALTER TABLE :"schema".outbox VALIDATE CONSTRAINT "only a row with an ordering_key can be parked";

-- watch_failed: failed rows by the time of the failure. New rows are not in it, so inserting and deleting them costs
-- nothing. It is created last, because its lock is kept until the end of the transaction.
CREATE INDEX IF NOT EXISTS outbox_failed ON :"schema".outbox (last_failed_at, id) WHERE last_failed_at IS NOT NULL;

INSERT INTO :"schema".outbox_migration (version, name) VALUES (3, 'failed_rows');

SELECT set_config('lock_timeout', current_setting('outrider.lock_timeout'), true);
