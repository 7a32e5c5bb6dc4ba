-- leader/lock_term_exclusive: wait for every running write of the previous leader. The update of this row (begin_term)
-- would wait, too; but with this statement the new lease begins after the wait.
select id from tasuki_leader_term where id = 1 for update
