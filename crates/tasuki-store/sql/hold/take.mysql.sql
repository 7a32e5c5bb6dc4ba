-- hold/take: one run of a (job, scope) at a time. `on duplicate key` and not `ignore`, which would hide other errors.
insert into tasuki_hold (job_id, scope_kind, scope_id, run_id, token)
select job_id, scope_kind, scope_id, id, :token
  from tasuki_run
 where id = :run_id
on duplicate key update tasuki_hold.job_id = tasuki_hold.job_id
