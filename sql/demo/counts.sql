-- What the demo compares: committed orders, and pending messages.
SELECT (SELECT count(*) FROM shop_order), (SELECT count(*) FROM :"schema".outbox);
