-- due/put_stretch: runs that wait alike, and whose ids follow one another.
insert into tasuki_due (lane, due_at, run_id, exclusive, more)
values (:lane, :due_at, :run_id, 0, :more)
