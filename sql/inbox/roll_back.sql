-- The block failed: undo mark and effects; the transaction stays usable.
ROLLBACK TO SAVEPOINT outbox_inbox
