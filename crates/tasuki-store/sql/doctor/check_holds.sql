-- doctor/check_holds: holds without a leased run that owns them.
select h.run_id as id,
       case when r.state in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'SKIPPED', 'EXPIRED')
            then 1 else 0 end as ended_but_holds,
       case when r.id is null
              or r.state not in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'SKIPPED', 'EXPIRED')
            then 1 else 0 end as stale_hold
  from tasuki_hold h
  left join tasuki_run r on r.id = h.run_id
 where r.id is null
    or r.state not in ('ASSIGNED', 'RUNNING')
    or r.exclusive = 0
    or r.lease_token is null
    or r.lease_token <> h.token
    or r.job_id <> h.job_id
    or r.scope_kind <> h.scope_kind
    or r.scope_id <> h.scope_id
 limit :limit
