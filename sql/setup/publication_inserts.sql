-- Publish inserts only: the relay does not need updates and deletes.
--     psql -v publication=outbox -f sql/setup/publication_inserts.sql
ALTER PUBLICATION :"publication" SET (publish = 'insert');
