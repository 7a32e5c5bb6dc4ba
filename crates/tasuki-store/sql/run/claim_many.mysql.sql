-- run/claim_many: T1c for runs whose due rows this transaction has deleted.
update json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
   set r.state = 'RUNNING',
       r.attempt_no = r.attempt_no + 1,
       r.tries = r.tries + 1,
       r.releases = 0,
       r.worker_id = :worker_id,
       r.lease_token = :token,
       r.assigned_at = :now,
       r.started_at = :now,
       r.version = r.version + 1
 where r.state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')
   and r.cancel_requested_at is null
   and r.tries < r.tries_allowed
