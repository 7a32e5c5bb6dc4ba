-- doctor/next: where the next stretch of runs begins; gaps in the ids cost nothing.
select min(id) as id
  from tasuki_run
 where id >= :from
