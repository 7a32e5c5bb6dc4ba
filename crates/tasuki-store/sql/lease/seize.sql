-- lease/seize: the lapsed lease goes first, guarded by what was read: a renewal that came in between wins, and one that
-- comes later finds no row.
-- Compared by a difference, which no index answers: the token's is the only one to go by.
delete from tasuki_lease
 where token = :token
   and lease_until - :lease_until = 0
   and (lease_until < :now - :grace
        or exists (select 1 from tasuki_worker w where w.id = tasuki_lease.worker_id and w.dead_at is not null))
