-- lease/insert_claim_range: T1c, first step: create a lease for the due runs of a lane. Guard: the worker may claim;
-- the first due rows show that the run ids are consecutive; and no run among them is isolated or needs a hold. Reads no
-- run. The later statements of the script read this row. Parameters are wrapped in subqueries, because SQLite would
-- otherwise plan the statement again for each value.
insert into tasuki_lease (token, worker_id, epoch, lease_until, heartbeat_at, run_ids, first_run, last_run, last_due_at, due_at_sum)
select :token, :worker_id, null, :now + :ttl, :now, '[]', min(run_id), min(run_id) + sum(claimed) - 1, max(due_at), sum(due_at * claimed)
  from (select run_id, due_at, exclusive, isolated, runs_before, min(extra_runs + 1, (select :limit) - runs_before) as claimed
          from (select run_id, due_at, exclusive, isolated, extra_runs,
                       sum(extra_runs + 1) over (order by due_at, run_id) - extra_runs - 1 as runs_before
                  from (select run_id, due_at, exclusive, isolated, extra_runs
                          from tasuki_due
                         where lane = (select :lane)
                           and due_at >= (select :after_at)
                           and due_at <= :now
                           and (skip_at is null or skip_at >= :now)
                         order by due_at, run_id
                         limit (select :max_rows)))
         where runs_before < (select :limit))
having count(*) > 0
   and (sum(claimed) = (select :limit) or count(*) < (select :max_rows))
   and min(run_id - runs_before) = max(run_id - runs_before)
   and max(exclusive) = 0
   and max(isolated) = 0
   and exists (
           select 1
             from tasuki_worker w
            where w.id = (select :worker_id)
              and w.draining_at is null
              and w.detached_at is null
              and w.dead_at is null
              and w.gone_at is null)
