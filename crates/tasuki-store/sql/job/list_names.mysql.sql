-- job/list_names: the names of these jobs, including deleted ones. The list is a JSON text, because there are no array
-- parameters.
select j.id, j.name
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  join tasuki_job j on j.id = x.id
