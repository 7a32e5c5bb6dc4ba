-- leader/lock: shared with this leader's other writes, exclusive for a mint.
select id from tasuki_leader_term where id = 1 lock in share mode
