-- leader/find: the current term and the leader's lease.
select t.epoch, t.holder, t.began_at, l.lease_until, l.renewed_at, l.unbroken_since, :now as clock
  from tasuki_leader_term t
  join tasuki_leader_lease l on l.id = t.id
 where t.id = 1
