-- What the demo compares: orders that were committed, messages that still wait.
SELECT (SELECT count(*) FROM shop_order), (SELECT count(*) FROM :"schema".outbox);
