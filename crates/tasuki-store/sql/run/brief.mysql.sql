-- run/brief: of these runs only what a filter looks at. A list is a JSON text here.
select r.id, r.job_id, r.state, r.origin, r.scope_kind, r.scope_id, r.scheduled_for
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
