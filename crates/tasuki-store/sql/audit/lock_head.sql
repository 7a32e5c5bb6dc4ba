-- audit/lock_head: lock the end of the chain until the audited change is committed; also returns the database's clock.
select seq, hash, :now as clock
  from tasuki_audit_head
 where id = 1
   for update
