-- hold/acquire: acquire the hold of a (job, scope), so that only one of its runs is active. The primary key excludes a
-- second run; reading the sibling runs would not.
insert into tasuki_hold (job_id, scope_kind, scope_id, run_id, token)
select job_id, scope_kind, scope_id, id, :token
  from tasuki_run
 where id = :run_id
on conflict do nothing
