-- migration/list: the recorded migrations.
select version, name, checksum, applied_at
  from tasuki_migration
 order by version
