-- leader/renew_lease: renew the leader's lease. Guard: by its holder, at its epoch, before it expires. unbroken_since
-- restarts after a gap that is longer than usual.
update tasuki_leader_lease
   set lease_until = :now + :ttl,
       unbroken_since = case when renewed_at < :now - :max_gap then :now else unbroken_since end,
       renewed_at = :now
 where id = 1
   and epoch = :epoch
   and holder = :holder
   and lease_until > :now
