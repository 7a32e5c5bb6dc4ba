-- run/list_filter_fields: only those columns of these runs that a list filter compares. The list is a JSON text,
-- because there are no array parameters.
select r.id, r.job_id, r.state, r.origin, r.scope_kind, r.scope_id, r.scheduled_for
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
