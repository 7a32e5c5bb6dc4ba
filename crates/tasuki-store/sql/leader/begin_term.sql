-- leader/begin_term: begin the new term. From now on every write of an older epoch is refused.
update tasuki_leader_term
   set epoch = :epoch,
       holder = :holder,
       began_at = :now
 where id = 1
   and epoch < :epoch
