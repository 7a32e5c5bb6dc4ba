-- hold/release: release a hold. Guard: this run acquired it with this token.
delete from tasuki_hold
 where job_id = :job_id
   and scope_kind = :scope_kind
   and scope_id = :scope_id
   and run_id = :run_id
   and token = :token
