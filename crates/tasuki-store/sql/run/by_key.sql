-- run/by_key: the run that has the slot or the idempotency key already.
select id
  from tasuki_run
 where (job_id = :job_id and scope_kind = :scope_kind and scope_id = :scope_id and slot = :slot)
    or idempotency_key = :idempotency_key
 order by id
 limit 1
