-- doctor/check_holds: holds without a leased run that owns them. Here with the two tables of a run, because for the
-- view SQLite would copy all runs to find a few.
select h.run_id as id,
       case when r.state in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'SKIPPED', 'EXPIRED')
            then 1 else 0 end as ended_but_holds,
       case when b.id is null
              or r.state not in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'SKIPPED', 'EXPIRED')
            then 1 else 0 end as stale_hold
  from tasuki_hold h
  left join tasuki_run_state r on r.id = h.run_id
  left join tasuki_run_data b on b.id = r.id
 where b.id is null
    or r.state not in ('ASSIGNED', 'RUNNING')
    or b.exclusive = 0
    or r.lease_token is null
    or r.lease_token <> h.token
    or b.job_id <> h.job_id
    or b.scope_kind <> h.scope_kind
    or b.scope_id <> h.scope_id
 limit :limit
