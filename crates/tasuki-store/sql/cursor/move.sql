-- cursor/move: with the runs it stands for, and only from where it was read.
-- Compared by a difference, which no index answers: by next_fire it would read every schedule of that instant.
update tasuki_cursor
   set next_fire = :to
 where job_id = :job_id
   and scope_kind = :scope_kind
   and scope_id = :scope_id
   and next_fire - :from = 0
