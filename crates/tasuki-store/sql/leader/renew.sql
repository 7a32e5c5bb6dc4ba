-- leader/renew: by its holder, at its epoch, while it lasts.
update tasuki_leader_lease
   set lease_until = :now + :ttl,
       fresh_since = case when renewed_at < :now - :gap then :now else fresh_since end,
       renewed_at = :now
 where id = 1
   and epoch = :epoch
   and holder = :holder
   and lease_until > :now
