-- Undo publication.sql.
DROP PUBLICATION IF EXISTS :"publication";
