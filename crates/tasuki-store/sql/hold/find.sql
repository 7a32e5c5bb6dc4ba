-- hold/find: the run and the token that own a hold.
select h.run_id, h.token
  from tasuki_hold h
 where h.job_id = :job_id
   and h.scope_kind = :scope_kind
   and h.scope_id = :scope_id
