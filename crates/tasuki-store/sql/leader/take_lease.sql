-- leader/take_lease: take the leader's lease. Guard: it has expired or was given up, and its epoch is still the one
-- that was read.
update tasuki_leader_lease
   set epoch = :epoch,
       holder = :holder,
       lease_until = :now + :ttl,
       renewed_at = :now,
       unbroken_since = :now
 where id = 1
   and lease_until <= :now
   and epoch = :expected
