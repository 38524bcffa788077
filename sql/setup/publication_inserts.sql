-- Inserts only: updates and deletes of the outbox would reach the relay for nothing.
--     psql -v publication=outbox -f sql/setup/publication_inserts.sql
ALTER PUBLICATION :"publication" SET (publish = 'insert');
