-- job/list_names: the names of these jobs, including deleted ones. The list is a JSON text, because there are no array
-- parameters.
select id, name
  from tasuki_job
 where id in (select value from json_each(:ids))
