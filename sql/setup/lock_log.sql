-- Wait for every transaction that has appended events, and let no other append. Run by `outrider events new-epoch`; ends
-- with the transaction.
LOCK TABLE :"schema".outbox_event IN ACCESS EXCLUSIVE MODE;
