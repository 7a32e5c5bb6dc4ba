-- migration/end: it is done.
update tasuki_migration
   set applied_at = :now
 where version = :version
