-- job/versions: what runs were made of, with the names of their jobs. Some more than were asked for may be among them. A list
-- is a JSON text here.
select j.name, v.*
  from tasuki_job_version v
  join tasuki_job j on j.id = v.job_id
 where v.job_id in (select value from json_each(:jobs))
   and v.version in (select value from json_each(:versions))
