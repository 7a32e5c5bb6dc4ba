-- due/list_next_page: waiting runs, from where the last page ended. Spelled out, because MariaDB uses no index for a
-- row comparison.
select lane, due_at, run_id, extra_runs
  from tasuki_due
 where (lane < :lane or (lane = :lane and due_at < :at) or (lane = :lane and due_at = :at and run_id < :id))
 order by lane desc, due_at desc, run_id desc
 limit :limit
