-- event/delete: retention. Only what was taken long ago. Joined: a subquery would be asked for every row of the table.
delete t
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_event t force index (primary) on t.id = x.id
 where t.processed_at < :now - :age
