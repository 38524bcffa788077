-- Add the outbox table to a publication that lost it (the table was dropped and created again).
--     psql -v schema=public -v publication=outbox -f sql/setup/publication_table.sql
ALTER PUBLICATION :"publication" SET TABLE :"schema".outbox;
