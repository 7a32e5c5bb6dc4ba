-- lease/touch: renewed for as long as it lasts from now. No row: it was taken away, and what ran under it is nobody's.
-- Whose it is, is asked in a way that no index answers: the token's is the only one to go by.
update tasuki_lease
   set lease_until = :now + :ttl,
       heartbeat_at = :now
 where token = :token
   and case when worker_id = :worker_id then 1 else 0 end = 1
