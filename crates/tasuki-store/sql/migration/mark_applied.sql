-- migration/mark_applied: record that a migration is complete.
update tasuki_migration
   set applied_at = :now
 where version = :version
