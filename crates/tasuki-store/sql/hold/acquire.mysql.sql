-- hold/acquire: acquire the hold of a (job, scope), so that only one of its runs is active. With `on duplicate key`
-- instead of `ignore`, because `ignore` would hide other errors.
insert into tasuki_hold (job_id, scope_kind, scope_id, run_id, token)
select job_id, scope_kind, scope_id, id, :token
  from tasuki_run
 where id = :run_id
on duplicate key update tasuki_hold.job_id = tasuki_hold.job_id
