-- leader/check: after the lock, in a statement of its own: it sees every term committed before the lock was had.
select epoch from tasuki_leader_term where id = 1
