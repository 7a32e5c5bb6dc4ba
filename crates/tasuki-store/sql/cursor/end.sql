-- cursor/end: the schedule never fires again.
-- Compared by a difference, which no index answers: by next_fire it would read every schedule of that instant.
delete from tasuki_cursor
 where job_id = :job_id
   and scope_kind = :scope_kind
   and scope_id = :scope_id
   and next_fire - :from = 0
