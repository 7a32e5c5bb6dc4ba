-- run/by_ids: these runs. A list is a JSON text here.
select r.*
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
