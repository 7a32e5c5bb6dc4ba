-- audit/advance: the end of the chain moves on, from where it was locked.
update tasuki_audit_head
   set seq = :seq,
       hash = :hash
 where id = 1
   and hash = :prev_hash
