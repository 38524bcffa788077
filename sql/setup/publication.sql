-- The publication: exactly the outbox table, inserts only. Deletes and updates of the outbox never reach the relay.
--     psql -v schema=public -v publication=outbox -f sql/setup/publication.sql
-- Needs: ownership of the table, CREATE on the database. Create it before the slot.
CREATE PUBLICATION :"publication" FOR TABLE :"schema".outbox WITH (publish = 'insert');
