-- cursor/move: move a cursor behind the slots whose runs this transaction creates. Guard: the cursor has not moved
-- since it was read. The guard compares a difference, because otherwise the planner could use the index on next_fire
-- and read every schedule of that instant.
update tasuki_cursor
   set next_fire = :to
 where job_id = :job_id
   and scope_kind = :scope_kind
   and scope_id = :scope_id
   and next_fire - :from = 0
