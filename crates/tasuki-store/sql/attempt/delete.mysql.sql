-- attempt/delete: retention, with their runs. Joined: a subquery would be asked for every row of the table.
delete t
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  join tasuki_attempt t on t.run_id = x.id
