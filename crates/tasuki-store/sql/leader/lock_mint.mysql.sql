-- leader/lock: waits for every write of the leader before.
select id from tasuki_leader_term where id = 1 for update
