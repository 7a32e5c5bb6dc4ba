-- doctor/find_next_id: the first run id at or after this one, in either of the two tables of a run, because a row may
-- be missing in one.
select min(id) as id
  from (select min(id) as id
          from tasuki_run_data
         where id >= :from
        union all
        select min(id)
          from tasuki_run_state
         where id >= :from)
