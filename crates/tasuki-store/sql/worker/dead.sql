-- worker/dead: reported by a newer incarnation on the same node that has swept its processes.
update tasuki_worker
   set dead_at = :now
 where id = :id
   and node = :node
   and dead_at is null
