-- The epoch of new events of the log. Run by `outrider events new-epoch`, in a transaction that holds the table's lock.
ALTER TABLE :"schema".outbox_event ALTER COLUMN epoch SET DEFAULT :'epoch';
