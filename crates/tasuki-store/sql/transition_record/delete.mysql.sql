-- transition_record/delete: retention: delete the transition records of these runs. A join, because MariaDB evaluates a
-- subquery again for every row of the table.
delete t
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run_note t force index (tasuki_run_note_run) on t.run_id = x.id
