-- lease/renew: T3: renew a lease for its full duration from now. No row: the lease was taken away, and its runs no
-- longer belong to this worker. The worker is compared in an expression, so that the planner uses only the primary key.
update tasuki_lease
   set lease_until = :now + :ttl,
       heartbeat_at = :now
 where token = :token
   and case when worker_id = :worker_id then 1 else 0 end = 1
