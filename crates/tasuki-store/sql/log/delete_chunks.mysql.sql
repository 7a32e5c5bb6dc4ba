-- log/delete_chunks: retention: delete the captured output of these runs. A join, because MariaDB evaluates a subquery
-- again for every row of the table.
delete t
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_log_chunk t force index (primary) on t.run_id = x.id
