-- job/list_versions: versions of several jobs, with the names of the jobs. May return more pairs than requested.
select j.name, v.*
  from tasuki_job_version v
  join tasuki_job j on j.id = v.job_id
 where v.job_id = any(:jobs)
   and v.version = any(:versions)
