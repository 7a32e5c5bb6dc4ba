-- lease/delete_expired: delete an expired lease before its runs are recovered. Guard: it is unchanged since it was read
-- and still expired. A renewal that came in between wins, and a later one finds no row. The guard compares a
-- difference, so that the planner uses only the primary key.
delete from tasuki_lease
 where token = :token
   and lease_until - :lease_until = 0
   and (lease_until < :now - :grace
        or exists (select 1 from tasuki_worker w where w.id = tasuki_lease.worker_id and w.dead_at is not null))
