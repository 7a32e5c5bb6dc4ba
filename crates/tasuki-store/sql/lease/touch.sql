-- lease/touch: renewed for as long as it lasts from now. No row: it was taken away, and what ran under it is nobody's.
update tasuki_lease
   set lease_until = :now + :ttl,
       heartbeat_at = :now
 where token = :token
   and worker_id = :worker_id
