-- run/begin_confirming: T15, RUNNING, NONE -> CONFIRMING, for runs that this transaction has locked; each with its
-- token and the end of its lease. The deadline is never later than the end of the lease.
update json_table(:runs, '$[*]' columns (
           id bigint path '$[0]',
           token char(32) path '$[1]',
           lease_until bigint path '$[2]')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
   set r.continuation = 'CONFIRMING',
       r.continuation_started_at = :now,
       r.continuation_deadline = least(:now + :confirm_timeout, x.lease_until),
       r.version = r.version + 1
 where r.state = 'RUNNING'
   and r.lease_token = unhex(x.token)
   and coalesce(r.continuation, 'NONE') = 'NONE'
