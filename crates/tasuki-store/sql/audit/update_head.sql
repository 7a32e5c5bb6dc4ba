-- audit/update_head: move the end of the chain to the new row. Guard: the end is still the one that this transaction
-- locked.
update tasuki_audit_head
   set seq = :seq,
       hash = :hash
 where id = 1
   and hash = :prev_hash
