-- doctor/listed: runs of a stretch that stand in no list: the one they are to be listed with is not there, or does not stand for them.
select r.id, 1 as not_listed
  from tasuki_run r
 where r.id >= :from
   and r.id <= :to
   and r.more is null
   and (select count(*)
          from tasuki_run h
         where h.more is not null
           and h.id < r.id
           and h.id > r.id - 64
           and h.id + h.more >= r.id
           and h.job_id = r.job_id
           and h.scheduled_for = r.scheduled_for) <> 1
 order by r.id
 limit :most
