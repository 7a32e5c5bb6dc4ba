-- run/list_exclusive_in_range: like run/list_exclusive, for runs with consecutive ids.
select r.id, r.lease_token, r.job_id, r.scope_kind, r.scope_id
  from tasuki_run r
 where r.id between :first and :last
   and r.exclusive = 1
