-- Remove the outbox with everything in it: undelivered messages, dead letters, archive, event streams, inbox.
DROP TABLE IF EXISTS :"schema".outbox, :"schema".outbox_dead_letter, :"schema".outbox_archive, :"schema".outbox_event,
                     :"schema".outbox_inbox, :"schema".outbox_worker, :"schema".outbox_migration,
                     :"schema".outbox_epoch, :"schema".outbox_snapshot, :"schema".outbox_subject_key;
