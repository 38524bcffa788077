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
-- The owner of each of these rows, for the relay while it catches up. A row that is gone is left out. A row of a
-- transaction that this statement does not see yet still has the owner that it was inserted with, the relay: no other
-- session can have changed it. One statement, so that both looks have one snapshot.
SELECT t.id, coalesce(o.owner, 'relay')
  FROM unnest(%(ids)s::bigint[], %(xids)s::bigint[]) AS t (id, xid)
  LEFT JOIN (SELECT id, owner FROM :"schema".outbox WHERE id = ANY(%(ids)s::bigint[])) AS o USING (id)
 :with_snapshot
 WHERE o.owner IS NOT NULL OR :not_seen;

-- in_progress --
-- Those of these transactions that this statement does not see yet.
SELECT t.xid
  FROM unnest(%(xids)s::bigint[]) AS t (xid)
 :with_snapshot
 WHERE :not_seen;

-- keys_in_table --
-- The next ordering keys that have a row, in order, from the one behind `after` (null: from the first). One index probe
-- per key. A relay that starts blocks all of them.
WITH RECURSIVE k (ordering_key) AS (
    (SELECT ordering_key FROM :"schema".outbox
      WHERE ordering_key IS NOT NULL AND (%(after)s::text IS NULL OR ordering_key > %(after)s::text)
      ORDER BY ordering_key LIMIT 1)
    UNION ALL
    SELECT (SELECT o.ordering_key FROM :"schema".outbox AS o
             WHERE o.ordering_key > k.ordering_key ORDER BY o.ordering_key LIMIT 1)
      FROM k WHERE k.ordering_key IS NOT NULL
)
SELECT ordering_key FROM k WHERE ordering_key IS NOT NULL LIMIT %(at_once)s;

-- keys_without_rows --
-- Those of these ordering keys that have no row. LIMIT makes it one index probe per key, whatever the planner expects.
SELECT k.ordering_key
  FROM unnest(%(keys)s::text[]) AS k (ordering_key)
 WHERE (SELECT o.id FROM :"schema".outbox AS o WHERE o.ordering_key = k.ordering_key LIMIT 1) IS NULL;

-- free_keys --
-- Of these rows, each the relay's next one of a blocked key: the keys that have no earlier row and no other row that
-- the scheduler owns. LIMIT as in keys_without_rows.
SELECT k.ordering_key
  FROM unnest(%(keys)s::text[], %(ids)s::bigint[]) AS k (ordering_key, id)
 WHERE (SELECT o.id FROM :"schema".outbox AS o
         WHERE o.ordering_key = k.ordering_key AND o.id < k.id LIMIT 1) IS NULL
   AND (SELECT o.id FROM :"schema".outbox AS o
         WHERE o.ordering_key = k.ordering_key AND o.id > k.id AND o.owner = 'scheduler' LIMIT 1) IS NULL;

-- wal_position --
-- The end of the WAL. While the relay catches up, rows committed before it are checked against the table.
SELECT pg_current_wal_insert_lsn()::text;

-- timeline --
-- The timeline of the server: a promoted standby, or a server restored to a point in time, starts a new one.
SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int;

-- server_clock --
-- The database's clock in microseconds since 2000-01-01 UTC, the unit of the replication protocol.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 946684800000000;
