-- lease/insert_claim_of_lane: T1c, first step: create a lease for the due runs of a lane. Guard: the worker may claim, and
-- no run among them is isolated or needs a hold. Stores the list of run ids and, if the ids are consecutive, the first and
-- the last. The later statements of the script read this row. Parameters are wrapped in subqueries, because SQLite would
-- otherwise plan the statement again for each value.
insert into tasuki_lease (token, worker_id, epoch, lease_until, heartbeat_at, run_ids, first_run, last_run, last_due_at, job_id, due_at_sum)
select :token, :worker_id, null, :now + :ttl, :now, json_group_array(id),
       case when max(id) - min(id) = count(*) - 1 then min(id) end,
       case when max(id) - min(id) = count(*) - 1 then max(id) end,
       max(due_at),
       case when min(job_id) = max(job_id) then min(job_id) end,
       sum(due_at)
  from (select r.id, r.job_id, d.due_at, d.exclusive, d.isolated
          from tasuki_due d
         cross join tasuki_run_data r on r.id >= d.run_id and r.id <= d.run_id + d.extra_runs
         where not exists (select 1 from tasuki_lease where token = :token)
           and d.lane = (select :lane)
           and d.due_at >= (select :after_at)
           and d.due_at <= :now
           and (d.skip_at is null or d.skip_at >= :now)
         order by d.due_at, d.run_id
         limit (select :limit))
having count(*) > 0
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
