-- job/names: what these jobs are called, deleted ones too.
select id, name
  from tasuki_job
 where id = any(:ids)
