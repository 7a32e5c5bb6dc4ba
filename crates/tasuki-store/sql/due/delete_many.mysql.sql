-- due/delete_many: delete the due rows that this transaction has locked, given as a JSON list of (due_at, run_id).
delete d
  from json_table(:due_rows, '$[*]' columns (due_at bigint path '$[0]', run_id bigint path '$[1]')) x
  straight_join tasuki_due d force index (primary) on d.lane = :lane and d.due_at = x.due_at and d.run_id = x.run_id
