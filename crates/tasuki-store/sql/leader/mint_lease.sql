-- leader/mint: the lease is taken only if it lapsed or was given up, at the epoch that was seen.
update tasuki_leader_lease
   set epoch = :epoch,
       holder = :holder,
       lease_until = :now + :ttl,
       renewed_at = :now,
       fresh_since = :now
 where id = 1
   and lease_until <= :now
   and epoch = :seen
