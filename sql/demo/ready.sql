-- Whether the relay reads from its slot and the scheduler has said that it lives.
SELECT EXISTS (SELECT 1 FROM pg_replication_slots WHERE slot_name = :'slot' AND active)
   AND EXISTS (SELECT 1 FROM :"schema".outbox_worker WHERE kind = 'scheduler');
