-- due/list_first_page: waiting runs, lane by lane, latest due first.
select lane, due_at, run_id, extra_runs
  from tasuki_due
 order by lane desc, due_at desc, run_id desc
 limit :limit
