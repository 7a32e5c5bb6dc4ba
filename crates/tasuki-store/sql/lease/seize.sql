-- lease/seize: the lapsed lease goes first, guarded by what was read: a renewal that came in between wins, and one that
-- comes later finds no row.
delete from tasuki_lease
 where token = :token
   and lease_until = :lease_until
   and (lease_until < :now - :grace
        or exists (select 1 from tasuki_worker w where w.id = tasuki_lease.worker_id and w.dead_at is not null))
