-- run/list_by_ids: these runs. The list is a JSON text, because there are no array parameters.
select r.*
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
