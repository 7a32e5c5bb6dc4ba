-- migration/list: what has been applied.
select version, name, checksum, applied_at
  from tasuki_migration
 order by version
