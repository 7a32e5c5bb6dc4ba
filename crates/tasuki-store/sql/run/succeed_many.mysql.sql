-- run/succeed_many: T4 for runs with one token. Each element of the JSON list is the report of one run.
-- The clock may have been set back since the start; a run never ends before its start.
update json_table(:reports, '$[*]' columns (
           id bigint path '$.id',
           exit_code bigint path '$.exit_code',
           result longtext path '$.result',
           rows_affected bigint path '$.rows_affected',
           log_ref longtext path '$.log_ref')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
   set r.state = 'SUCCEEDED',
       r.outcome = 'SUCCEEDED',
       r.finished_at = greatest(:now, r.started_at),
       r.exit_code = x.exit_code,
       r.result = x.result,
       r.rows_affected = x.rows_affected,
       r.log_ref = x.log_ref,
       r.version = r.version + 1
 where r.state = 'RUNNING'
   and r.lease_token = :token
