-- The block is done: mark and effects are the transaction's.
RELEASE SAVEPOINT outbox_inbox
