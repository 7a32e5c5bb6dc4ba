-- doctor/next: the same where a run is two tables, of which one may be without the other.
select min(id) as id
  from (select min(id) as id
          from tasuki_run_birth
         where id >= :from
        union all
        select min(id)
          from tasuki_run_life
         where id >= :from)
