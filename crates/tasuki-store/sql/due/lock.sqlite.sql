-- due/lock: what can be claimed, passing over what must wait for another run of its kind, with what a worker must know of it
-- once it has it: nobody else writes meanwhile. Nothing for a worker that may not claim. As one list: a row by itself costs
-- more than what is in it.
select 'run_id due_at exclusive alone id job_id job_version origin scope_kind scope_id scheduled_for next_retry_at attempt_no tries event_id args' as names,
       json_group_array(
           json_array(
               run_id, due_at, exclusive, alone, run_id, job_id, job_version, origin, scope_kind, scope_id, scheduled_for,
               next_retry_at, attempt_no + 1, tries + 1, event_id, cast(args as text))
           order by due_at, run_id) as listed
  from (select d.run_id, d.due_at, d.exclusive, d.alone, r.job_id, r.job_version, r.origin, r.scope_kind, r.scope_id,
               r.scheduled_for, r.next_retry_at, r.attempt_no, r.tries, r.event_id, r.args
          from tasuki_due d
         cross join tasuki_run r on r.id = d.run_id
         where exists (
                   select 1
                     from tasuki_worker w
                    where w.id = :worker_id
                      and w.draining_at is null
                      and w.detached_at is null
                      and w.dead_at is null
                      and w.gone_at is null)
           and d.lane = :lane
           and d.due_at >= :after_at
           and d.due_at <= :now
           and (d.skip_at is null or d.skip_at >= :now)
           and (d.exclusive = 0 or not exists (
                   select 1
                     from tasuki_hold h
                    where h.job_id = r.job_id
                      and h.scope_kind = r.scope_kind
                      and h.scope_id = r.scope_id))
         order by d.due_at, d.run_id
         limit :most)
