-- due/list_past_due: runs that wait in a lane although they are due, from where the last page ended, with the run that
-- owns the hold they wait for. Without id ranges, because their runs cannot expire or be skipped and need no hold.
select d.run_id, d.due_at, d.exclusive, case when r.tries = 0 then r.skip_at end as skip_at, r.attempt_no, r.job_id, r.job_version, r.scope_kind, r.scope_id,
       r.scheduled_for, r.origin, r.state, r.tries, r.releases, r.expires_at,
       (select h.run_id
          from tasuki_hold h
         where h.job_id = r.job_id
           and h.scope_kind = r.scope_kind
           and h.scope_id = r.scope_id) as hold_owner
  from tasuki_due d
  join tasuki_run r on r.id = d.run_id
 where d.lane = :lane
   and d.extra_runs = 0
   and d.due_at <= :now
   and d.due_at >= :at
   and (d.due_at > :at or d.run_id > :id)
 order by d.due_at, d.run_id
 limit :limit
