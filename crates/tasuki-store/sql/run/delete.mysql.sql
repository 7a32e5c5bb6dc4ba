-- run/delete: retention. Locked, and looked at; the trigger refuses what has not ended. Joined: a subquery would be asked for every row of the table.
delete t
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  join tasuki_run t on t.id = x.id
