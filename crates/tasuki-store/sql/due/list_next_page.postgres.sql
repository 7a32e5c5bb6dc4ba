-- due/list_next_page: waiting runs, from where the last page ended. A row comparison, so that the index scan starts at
-- that position.
select lane, due_at, run_id, extra_runs
  from tasuki_due
 where (lane, due_at, run_id) < (:lane, :at, :id)
 order by lane desc, due_at desc, run_id desc
 limit :limit
