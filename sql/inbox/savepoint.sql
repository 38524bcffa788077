-- For drivers without nested transactions of their own: the inbox's block begins.
SAVEPOINT outbox_inbox
