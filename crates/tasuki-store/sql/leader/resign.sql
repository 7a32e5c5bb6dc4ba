-- leader/resign, depose: the lease ends now, at the epoch that was seen.
update tasuki_leader_lease
   set lease_until = 0
 where id = 1
   and epoch = :epoch
   and lease_until > 0
