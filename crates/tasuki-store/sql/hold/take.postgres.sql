-- hold/take: one run of a (job, scope) at a time. The key excludes; a look at siblings would not.
insert into tasuki_hold (job_id, scope_kind, scope_id, run_id, token)
select job_id, scope_kind, scope_id, id, :token
  from tasuki_run
 where id = :run_id
on conflict do nothing
