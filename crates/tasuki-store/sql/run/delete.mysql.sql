-- run/delete: retention. Locked, and looked at; the trigger refuses what has not ended. Joined: a subquery would be asked for every row of the table.
delete t
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run t force index (primary) on t.id = x.id
