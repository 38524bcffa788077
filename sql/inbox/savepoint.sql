-- Begin the inbox's block, for drivers without nested transactions.
SAVEPOINT outbox_inbox
