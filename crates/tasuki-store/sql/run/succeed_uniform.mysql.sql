-- run/succeed_uniform: T4 for runs with one token and the same report.
-- The clock may have been set back since the start; a run never ends before its start.
update json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
   set r.state = 'SUCCEEDED',
       r.outcome = 'SUCCEEDED',
       r.finished_at = greatest(:now, r.started_at),
       r.exit_code = :exit_code,
       r.result = :result,
       r.rows_affected = :rows_affected,
       r.log_ref = :log_ref,
       r.version = r.version + 1
 where r.state = 'RUNNING'
   and r.lease_token = :token
