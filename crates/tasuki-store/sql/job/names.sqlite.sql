-- job/names: what these jobs are called, deleted ones too. A list is a JSON text here.
select id, name
  from tasuki_job
 where id in (select value from json_each(:ids))
