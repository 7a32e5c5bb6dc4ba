-- doctor/check_run_halves: runs of this id range that have a row in only one of their two tables, so that the view
-- tasuki_run does not show them.
select b.id, 1 as half_run
  from tasuki_run_data b
 where b.id >= :from
   and b.id <= :to
   and not exists (select 1 from tasuki_run_state l where l.id = b.id)
union all
select l.id, 1
  from tasuki_run_state l
 where l.id >= :from
   and l.id <= :to
   and not exists (select 1 from tasuki_run_data b where b.id = l.id)
 limit :limit
