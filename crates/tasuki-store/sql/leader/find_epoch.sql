-- leader/find_epoch: the current epoch. A statement of its own after the lock, so that it sees every term that was
-- committed before the lock was granted.
select epoch from tasuki_leader_term where id = 1
