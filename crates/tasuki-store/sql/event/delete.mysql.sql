-- event/delete: retention. Only what was taken long ago. Joined: a subquery would be asked for every row of the table.
delete t
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  join tasuki_event t on t.id = x.id
 where t.processed_at < :now - :age
