-- The block failed: mark and effects go, the transaction can go on.
ROLLBACK TO SAVEPOINT outbox_inbox
