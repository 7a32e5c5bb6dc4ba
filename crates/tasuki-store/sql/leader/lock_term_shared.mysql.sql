-- leader/lock_term_shared: lock the term for a write of the leader. Shared between the writes of one leader, exclusive
-- for a change of leadership.
select id from tasuki_leader_term where id = 1 lock in share mode
