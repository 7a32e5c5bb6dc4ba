-- job/names: what these jobs are called, deleted ones too. A list is a JSON text here.
select j.id, j.name
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  join tasuki_job j on j.id = x.id
