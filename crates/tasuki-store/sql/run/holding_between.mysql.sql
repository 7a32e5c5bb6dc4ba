-- run/holding_between: the same as run/holding for runs whose ids follow one another.
select r.id, r.lease_token, r.job_id, r.scope_kind, r.scope_id
  from tasuki_run r
 where r.id between :first and :last
   and r.exclusive = 1
