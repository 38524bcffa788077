-- Roles with the least privileges that each part needs. Run once per outbox, as the owner of its tables; then GRANT
-- each role to the login that needs it, or give it LOGIN and a password.
--     psql -v schema=public -v producer=outbox_producer -v relay=outbox_relay -v scheduler=outbox_scheduler \
--          -v consumer=outbox_consumer -v observer=outbox_observer -f sql/roles.sql
-- REPLICATION is an attribute, not a privilege: it is not inherited through GRANT. The relay must log in as its own
-- role (or, on managed servers, as a member of rds_replication or the like).

CREATE ROLE :"producer"  NOLOGIN;
CREATE ROLE :"relay"     NOLOGIN REPLICATION;
CREATE ROLE :"scheduler" NOLOGIN;
CREATE ROLE :"consumer"  NOLOGIN;
CREATE ROLE :"observer"  NOLOGIN;

GRANT USAGE ON SCHEMA :"schema" TO :"producer", :"relay", :"scheduler", :"consumer", :"observer";

-- Applications insert messages, append to and read event streams, save snapshots, and create keys of subjects.
GRANT INSERT ON :"schema".outbox TO :"producer";
GRANT SELECT, INSERT ON :"schema".outbox_event, :"schema".outbox_subject_key TO :"producer";
GRANT SELECT ON :"schema".outbox_epoch TO :"producer";
GRANT SELECT, INSERT, UPDATE ON :"schema".outbox_snapshot TO :"producer";

-- The relay settles rows and hands rows over; it never inserts a message. It reads the dead letters only to find out
-- whether an id is in use there.
GRANT SELECT, UPDATE, DELETE ON :"schema".outbox TO :"relay";
GRANT SELECT, INSERT ON :"schema".outbox_dead_letter TO :"relay";
GRANT INSERT ON :"schema".outbox_archive TO :"relay";
GRANT SELECT, INSERT, UPDATE, DELETE ON :"schema".outbox_worker TO :"relay";
GRANT SELECT ON :"schema".outbox_migration TO :"relay";

-- The scheduler also replays (inserts) and prunes.
GRANT SELECT, INSERT, UPDATE, DELETE ON :"schema".outbox, :"schema".outbox_worker TO :"scheduler";
GRANT SELECT, INSERT, DELETE ON :"schema".outbox_dead_letter, :"schema".outbox_archive TO :"scheduler";
GRANT SELECT, DELETE ON :"schema".outbox_inbox TO :"scheduler";
GRANT SELECT ON :"schema".outbox_event, :"schema".outbox_migration TO :"scheduler";

-- Consumers insert marks of processed events, and delete none. A consumer that publishes needs the producer's role too.
-- It reads the keys of subjects to decrypt payloads.
GRANT SELECT, INSERT ON :"schema".outbox_inbox TO :"consumer";
GRANT SELECT ON :"schema".outbox_subject_key TO :"consumer";

-- The observer reads every table but the keys, and changes none; pg_monitor lets it read the server's statistics.
GRANT SELECT ON :"schema".outbox, :"schema".outbox_dead_letter, :"schema".outbox_archive, :"schema".outbox_event,
                :"schema".outbox_inbox, :"schema".outbox_worker, :"schema".outbox_migration, :"schema".outbox_epoch,
                :"schema".outbox_snapshot TO :"observer";
GRANT pg_monitor TO :"observer";
