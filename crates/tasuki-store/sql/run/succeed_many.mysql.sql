-- run/succeed_many: T4 for runs under one token; how each ended is an object in a JSON list.
update json_table(:ends, '$[*]' columns (
           id bigint path '$.id',
           exit_code bigint path '$.exit_code',
           result longtext path '$.result',
           rows_affected bigint path '$.rows_affected',
           log_ref longtext path '$.log_ref')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
   set r.state = 'SUCCEEDED',
       r.outcome = 'SUCCEEDED',
       r.finished_at = :now,
       r.exit_code = x.exit_code,
       r.result = x.result,
       r.rows_affected = x.rows_affected,
       r.log_ref = x.log_ref,
       r.version = r.version + 1
 where r.state = 'RUNNING'
   and r.lease_token = :token
