-- run/list_exclusive: which of these runs have a hold to release.
select r.id, r.lease_token, r.job_id, r.scope_kind, r.scope_id
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
 where r.exclusive = 1
