-- due/insert_range: add an id range of equal waiting runs to the due table.
insert into tasuki_due (lane, due_at, run_id, exclusive, extra_runs)
values (:lane, :due_at, :run_id, 0, :extra_runs)
