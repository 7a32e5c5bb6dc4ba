-- doctor/halves: runs of a stretch that were born and have no life, or live and were never born: nobody sees them.
select b.id, 1 as half
  from tasuki_run_birth b
 where b.id >= :from
   and b.id <= :to
   and not exists (select 1 from tasuki_run_life l where l.id = b.id)
union all
select l.id, 1
  from tasuki_run_life l
 where l.id >= :from
   and l.id <= :to
   and not exists (select 1 from tasuki_run_birth b where b.id = l.id)
 limit :most
