-- A publication that publishes nothing (its table was dropped and made again) gets the outbox table.
--     psql -v schema=public -v publication=outbox -f sql/setup/publication_table.sql
ALTER PUBLICATION :"publication" SET TABLE :"schema".outbox;
