-- due/list_assignable: runs that the leader can assign, earliest due first, from where the last page ended: not past
-- their skip time, and not waiting for a hold.
select d.run_id, d.due_at, d.exclusive, case when r.tries = 0 then r.skip_at end as skip_at, r.attempt_no, r.job_id, r.job_version, r.scope_kind, r.scope_id,
       r.scheduled_for, r.origin, r.state, r.tries, r.releases, r.expires_at, null as hold_owner
  from tasuki_due d
  join tasuki_run r on r.id = d.run_id
 where d.lane = ''
   and d.due_at <= :until
   and d.due_at >= :at
   and (d.due_at > :at or d.run_id > :id)
   and (d.skip_at is null or d.skip_at >= :now)
   and (d.exclusive = 0 or not exists (
           select 1
             from tasuki_hold h
            where h.job_id = r.job_id
              and h.scope_kind = r.scope_kind
              and h.scope_id = r.scope_id))
 order by d.due_at, d.run_id
 limit :limit
