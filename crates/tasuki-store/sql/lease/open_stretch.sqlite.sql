-- lease/open_stretch: T1c, the first step: what is due is given to a worker that may claim, where the first rows of the lane say
-- that the ids follow one another, and that none of them must be taken by itself or wait for another run of its kind. No run is
-- looked at for it. What follows goes by this row.
-- A value in a subquery is none that SQLite would plan the statement anew for, each time.
insert into tasuki_lease (token, worker_id, epoch, lease_until, heartbeat_at, run_ids, first_run, last_run, last_due, dues)
select :token, :worker_id, null, :now + :ttl, :now, '[]', min(run_id), min(run_id) + sum(took) - 1, max(due_at), sum(due_at * took)
  from (select run_id, due_at, exclusive, alone, before, min(more + 1, (select :most) - before) as took
          from (select run_id, due_at, exclusive, alone, more,
                       sum(more + 1) over (order by due_at, run_id) - more - 1 as before
                  from (select run_id, due_at, exclusive, alone, more
                          from tasuki_due
                         where lane = (select :lane)
                           and due_at >= (select :after_at)
                           and due_at <= :now
                           and (skip_at is null or skip_at >= :now)
                         order by due_at, run_id
                         limit (select :rows)))
         where before < (select :most))
having count(*) > 0
   and (sum(took) = (select :most) or count(*) < (select :rows))
   and min(run_id - before) = max(run_id - before)
   and max(exclusive) = 0
   and max(alone) = 0
   and exists (
           select 1
             from tasuki_worker w
            where w.id = (select :worker_id)
              and w.draining_at is null
              and w.detached_at is null
              and w.dead_at is null
              and w.gone_at is null)
