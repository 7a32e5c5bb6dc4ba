-- due/list_next: what waits, from where the last page ended. As a pair, so that the index begins where the page does.
select lane, due_at, run_id, more
  from tasuki_due
 where (lane, due_at, run_id) < (:place, :at, :id)
 order by lane desc, due_at desc, run_id desc
 limit :most
