-- leader/show: who leads, as far as the database knows.
select t.epoch, t.holder, t.minted_at, l.lease_until, l.renewed_at, l.fresh_since, :now as clock
  from tasuki_leader_term t
  join tasuki_leader_lease l on l.id = t.id
 where t.id = 1
