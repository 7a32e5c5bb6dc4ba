-- migration/insert: record a migration before it is executed. Where schema changes are not rolled back, an interrupted
-- migration stays visible.
insert into tasuki_migration (version, name, checksum, applied_at)
values (:version, :name, :checksum, null)
