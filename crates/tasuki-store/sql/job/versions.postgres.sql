-- job/versions: what runs were made of, with the names of their jobs. Some more than were asked for may be among them.
select j.name, v.*
  from tasuki_job_version v
  join tasuki_job j on j.id = v.job_id
 where v.job_id = any(:jobs)
   and v.version = any(:versions)
