-- The publication: the outbox table, inserts only. The relay does not need updates and deletes.
--     psql -v schema=public -v publication=outbox -f sql/setup/publication.sql
-- Needs: ownership of the table, CREATE on the database. Create it before the slot.
CREATE PUBLICATION :"publication" FOR TABLE :"schema".outbox WITH (publish = 'insert');
