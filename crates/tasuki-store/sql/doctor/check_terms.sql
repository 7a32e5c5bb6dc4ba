-- doctor/check_terms: compare the term, the leader's lease and the term history.
select t.epoch as id,
       case when t.epoch <> coalesce((select max(h.epoch) from tasuki_term_history h), 0)
            then 1 else 0 end as term_not_newest,
       case when exists (select 1 from tasuki_term_history h
                          where h.epoch = t.epoch
                            and (t.holder is null or h.holder <> t.holder))
            then 1 else 0 end as holder_mismatch,
       case when l.epoch is null or l.epoch > t.epoch
            then 1 else 0 end as leader_lease_ahead,
       case when exists (select 1 from tasuki_lease x where x.epoch > t.epoch)
            then 1 else 0 end as lease_ahead
  from tasuki_leader_term t
  left join tasuki_leader_lease l on l.id = t.id
 where t.id = 1
