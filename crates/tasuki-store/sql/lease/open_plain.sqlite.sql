-- lease/open_plain: the same where they do not follow one another, or many rows say so: by the list of them, or by the first and
-- the last where they do after all.
insert into tasuki_lease (token, worker_id, epoch, lease_until, heartbeat_at, run_ids, first_run, last_run, last_due, job_id, dues)
select :token, :worker_id, null, :now + :ttl, :now, json_group_array(id),
       case when max(id) - min(id) = count(*) - 1 then min(id) end,
       case when max(id) - min(id) = count(*) - 1 then max(id) end,
       max(due_at),
       case when min(job_id) = max(job_id) then min(job_id) end,
       sum(due_at)
  from (select r.id, r.job_id, d.due_at, d.exclusive, d.alone
          from tasuki_due d
         cross join tasuki_run_birth r on r.id >= d.run_id and r.id <= d.run_id + d.more
         where not exists (select 1 from tasuki_lease where token = :token)
           and d.lane = (select :lane)
           and d.due_at >= (select :after_at)
           and d.due_at <= :now
           and (d.skip_at is null or d.skip_at >= :now)
         order by d.due_at, d.run_id
         limit (select :most))
having count(*) > 0
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
