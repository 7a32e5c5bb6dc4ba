-- worker/mark_dead: mark a worker as dead. Reported by a newer incarnation on the same node, which has killed the old
-- worker's processes.
update tasuki_worker
   set dead_at = :now
 where id = :id
   and node = :node
   and dead_at is null
