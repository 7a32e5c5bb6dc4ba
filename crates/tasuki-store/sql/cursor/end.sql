-- cursor/end: the schedule never fires again.
delete from tasuki_cursor
 where job_id = :job_id
   and scope_kind = :scope_kind
   and scope_id = :scope_id
   and next_fire = :from
