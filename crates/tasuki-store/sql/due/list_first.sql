-- due/list_first: what waits, lane by lane, latest due first.
select lane, due_at, run_id, more
  from tasuki_due
 order by lane desc, due_at desc, run_id desc
 limit :most
