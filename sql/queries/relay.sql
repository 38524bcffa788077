-- Run by the relay (outrider/storage/relay_queries.py). `outrider setup` runs hand_over_all too.

-- hand_over --
-- Leave rows to the scheduler: due now, no attempt spent. A row that the relay no longer owns is not changed.
UPDATE :"schema".outbox
   SET owner = 'scheduler', next_attempt_at = clock_timestamp()
 WHERE id = ANY(%(ids)s::bigint[])
   AND owner = 'relay'
RETURNING id;

-- hand_over_all --
-- Leave the rows that a new slot has not read to the scheduler. One batch; repeat until it returns no row.
WITH batch AS MATERIALIZED (
    SELECT id FROM :"schema".outbox
     WHERE owner = 'relay' AND id <= %(up_to)s
     ORDER BY id
     LIMIT %(batch_size)s
       FOR UPDATE SKIP LOCKED
)
UPDATE :"schema".outbox AS o
   SET owner = 'scheduler', next_attempt_at = clock_timestamp()
  FROM batch
 WHERE o.id = batch.id
RETURNING o.id;

-- newest_id --
-- The upper bound for hand_over_all and for walks over the outbox: later rows are not part of them.
SELECT coalesce(max(id), 0) FROM :"schema".outbox;

-- owners --
-- The owner of each of these rows that is still in the table: the relay checks rows against it while it catches up.
SELECT id, owner FROM :"schema".outbox WHERE id = ANY(%(ids)s::bigint[]);

-- in_progress --
-- Those of these transactions (lower 32 bits, as pgoutput sends them) that a new snapshot does not see yet. The WAL is
-- ahead of visibility, with synchronous replication for long: a row that is missing then may still appear. The upper
-- bits are those that bring the number nearest to the snapshot's xmax.
SELECT t.xid
  FROM unnest(%(xids)s::bigint[]) AS t (xid)
 CROSS JOIN (SELECT pg_current_snapshot() AS snapshot) AS now
 CROSS JOIN LATERAL (SELECT pg_snapshot_xmax(now.snapshot)::text::bigint AS xmax) AS newest
 CROSS JOIN LATERAL (
       SELECT newest.xmax + ((t.xid - newest.xmax) & 4294967295) -
              CASE WHEN (t.xid - newest.xmax) & 4294967295 > 2147483647 THEN 4294967296 ELSE 0 END AS full_xid
       ) AS whole
 WHERE NOT pg_visible_in_snapshot(whole.full_xid::text::xid8, now.snapshot);

-- keys_in_table --
-- Every ordering key that has a row, one index probe per key. A relay that starts blocks these keys.
WITH RECURSIVE k (ordering_key) AS (
    (SELECT ordering_key FROM :"schema".outbox WHERE ordering_key IS NOT NULL ORDER BY ordering_key LIMIT 1)
    UNION ALL
    SELECT (SELECT o.ordering_key FROM :"schema".outbox AS o
             WHERE o.ordering_key > k.ordering_key ORDER BY o.ordering_key LIMIT 1)
      FROM k WHERE k.ordering_key IS NOT NULL
)
SELECT ordering_key FROM k WHERE ordering_key IS NOT NULL;

-- free_keys --
-- Of these rows, each the relay's next one of a blocked key: the keys that have no earlier row and no other row that
-- the scheduler owns.
SELECT k.ordering_key
  FROM unnest(%(keys)s::text[], %(ids)s::bigint[]) AS k (ordering_key, id)
 WHERE NOT EXISTS (
       SELECT 1 FROM :"schema".outbox AS o
        WHERE o.ordering_key = k.ordering_key AND o.id < k.id)
   AND NOT EXISTS (
       SELECT 1 FROM :"schema".outbox AS o
        WHERE o.ordering_key = k.ordering_key AND o.id <> k.id AND o.owner = 'scheduler');

-- wal_position --
-- The end of the WAL. While the relay catches up, rows committed before it are checked against the table.
SELECT pg_current_wal_insert_lsn()::text;

-- server_clock --
-- The database's clock in microseconds since 2000-01-01 UTC, the unit of the replication protocol.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 946684800000000;
