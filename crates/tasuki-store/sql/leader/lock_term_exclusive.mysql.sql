-- leader/lock_term_exclusive: wait for every running write of the previous leader.
select id from tasuki_leader_term where id = 1 for update
