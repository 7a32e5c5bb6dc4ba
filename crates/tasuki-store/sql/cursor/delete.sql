-- cursor/delete: delete the cursor of a schedule that never fires again. Guard: the cursor has not moved since it was
-- read. The guard compares a difference, because otherwise the planner could use the index on next_fire and read every
-- schedule of that instant.
delete from tasuki_cursor
 where job_id = :job_id
   and scope_kind = :scope_kind
   and scope_id = :scope_id
   and next_fire - :from = 0
