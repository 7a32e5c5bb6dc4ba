-- job/list_versions: versions of several jobs, with the names of the jobs. May return more pairs than requested. The
-- list is a JSON text, because there are no array parameters.
select j.name, v.*
  from tasuki_job_version v
  join tasuki_job j on j.id = v.job_id
 where v.job_id in (select value from json_each(:jobs))
   and v.version in (select value from json_each(:versions))
