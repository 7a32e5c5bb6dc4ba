-- doctor/find_next_id: the first run id at or after this one, so that gaps in the ids cost nothing.
select min(id) as id
  from tasuki_run
 where id >= :from
