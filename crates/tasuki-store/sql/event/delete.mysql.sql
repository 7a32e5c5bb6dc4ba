-- event/delete: retention: delete these events. Guard: they were processed long ago. A join, because MariaDB evaluates
-- a subquery again for every row of the table.
delete t
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_event t force index (primary) on t.id = x.id
 where t.processed_at < :now - :min_age
