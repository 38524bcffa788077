-- The block succeeded: mark and effects belong to the transaction.
RELEASE SAVEPOINT outbox_inbox
