-- leader/mint: the new term, which fences every write of the one before.
update tasuki_leader_term
   set epoch = :epoch,
       holder = :holder,
       minted_at = :now
 where id = 1
   and epoch < :epoch
