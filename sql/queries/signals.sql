-- Run by the watcher that sends Django's signals (outrider.producer.django.signal_watcher).

-- watch_sent --
-- Messages delivered since a place in the archive. The lag lets statements that began earlier commit first, so that
-- every message is returned exactly once.
SELECT id, event_id::text, event_type, attempts, delivered_at, headers::text
  FROM :"schema".outbox_archive
 WHERE (delivered_at, id) > (%(since)s::timestamptz, %(after)s::bigint)
   AND delivered_at < statement_timestamp() - %(lag_seconds)s * interval '1 second'
 ORDER BY delivered_at, id
 LIMIT %(batch_size)s;

-- watch_failed --
-- Messages whose last failure was since then. A message that fails again is returned again; one that was delivered
-- meanwhile is not.
SELECT id, event_id::text, event_type, attempts, last_failed_at, headers::text, last_error
  FROM :"schema".outbox
 WHERE (last_failed_at, id) > (%(since)s::timestamptz, %(after)s::bigint)
   AND last_failed_at < statement_timestamp() - %(lag_seconds)s * interval '1 second'
 ORDER BY last_failed_at, id
 LIMIT %(batch_size)s;

-- watch_dead --
-- Messages that were buried since then.
SELECT id, event_id::text, event_type, attempts, died_at, headers::text, last_error, reason
  FROM :"schema".outbox_dead_letter
 WHERE (died_at, id) > (%(since)s::timestamptz, %(after)s::bigint)
   AND died_at < statement_timestamp() - %(lag_seconds)s * interval '1 second'
 ORDER BY died_at, id
 LIMIT %(batch_size)s;

-- watch_from --
-- The time at which a watcher begins.
SELECT clock_timestamp();

-- watch_lock --
-- One watcher per outbox is active; the others wait until its session ends.
SELECT pg_try_advisory_lock(hashtextextended('outbox signals ' || %(schema)s::text, 0));
