-- audit/lock: the end of the chain, held still until the change that is told has been committed; and the time.
select seq, hash, :now as clock
  from tasuki_audit_head
 where id = 1
   for update
