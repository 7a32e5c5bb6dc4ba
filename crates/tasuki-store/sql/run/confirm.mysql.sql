-- run/confirm: T15, RUNNING, NONE -> CONFIRMING, for runs that this transaction holds still; each with its token and how long
-- its lease lasts, which the deadline never outlives.
update json_table(:runs, '$[*]' columns (
           id bigint path '$[0]',
           token char(32) path '$[1]',
           lease_until bigint path '$[2]')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
   set r.continuation = 'CONFIRMING',
       r.continuation_started_at = :now,
       r.continuation_deadline = least(:now + :patience, x.lease_until),
       r.version = r.version + 1
 where r.state = 'RUNNING'
   and r.lease_token = unhex(x.token)
   and coalesce(r.continuation, 'NONE') = 'NONE'
