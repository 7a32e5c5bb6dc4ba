-- leader/end_lease: end the leader's lease now. Guard: its epoch is still the one that was read.
update tasuki_leader_lease
   set lease_until = 0
 where id = 1
   and epoch = :epoch
   and lease_until > 0
