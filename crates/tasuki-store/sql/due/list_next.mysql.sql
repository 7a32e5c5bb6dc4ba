-- due/list_next: what waits, from where the last page ended. Written out: pairs are not compared by an index here.
select lane, due_at, run_id, more
  from tasuki_due
 where (lane < :place or (lane = :place and due_at < :at) or (lane = :place and due_at = :at and run_id < :id))
 order by lane desc, due_at desc, run_id desc
 limit :most
