-- run/list_started: the columns that a worker needs to execute these runs.
select r.id, r.job_id, r.job_version, r.origin, r.scope_kind, r.scope_id, r.scheduled_for, r.next_retry_at, r.attempt_no,
       r.tries, r.event_id, r.args
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
