-- job/list_names: the names of these jobs, including deleted ones.
select id, name
  from tasuki_job
 where id = any(:ids)
