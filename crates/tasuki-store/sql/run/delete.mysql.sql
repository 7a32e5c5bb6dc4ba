-- run/delete: retention: delete these runs. The caller has locked and checked them; a trigger refuses runs that have
-- not ended. A join, because MariaDB evaluates a subquery again for every row of the table.
delete t
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run t force index (primary) on t.id = x.id
