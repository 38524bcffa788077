-- Does nothing, but makes a driver that begins transactions implicitly begin one.
SELECT 1
