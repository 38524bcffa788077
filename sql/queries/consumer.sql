-- Run by consumers (outrider.consumer.inbox), in the transaction of an event's effects.

-- mark_processed --
-- Mark an event as processed. Waits while another transaction marks the same event. Returns a row if this is the first
-- mark, none if the event was processed before.
INSERT INTO :"schema".outbox_inbox (consumer, event_id)
VALUES (%(consumer)s::text, %(event_id)s::text)
ON CONFLICT DO NOTHING
RETURNING 1;
