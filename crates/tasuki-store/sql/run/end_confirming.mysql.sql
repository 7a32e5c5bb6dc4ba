-- run/end_confirming: T15, RUNNING, CONFIRMING -> NONE, for runs that this transaction has locked and found in time.
update json_table(:runs, '$[*]' columns (id bigint path '$[0]', token char(32) path '$[1]')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
   set r.continuation = 'NONE',
       r.version = r.version + 1
 where r.state = 'RUNNING'
   and r.lease_token = unhex(x.token)
   and r.continuation in ('NONE', 'CONFIRMING')
