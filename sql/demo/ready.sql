-- Whether the relay streams from its slot and the scheduler has shown its presence.
SELECT EXISTS (SELECT 1 FROM pg_replication_slots WHERE slot_name = :'slot' AND active)
   AND EXISTS (SELECT 1 FROM :"schema".outbox_worker WHERE kind = 'scheduler');
