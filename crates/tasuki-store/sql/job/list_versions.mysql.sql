-- job/list_versions: versions of several jobs, with the names of the jobs. May return more pairs than requested. The
-- list is a JSON text, because there are no array parameters.
select j.name, v.*
  from json_table(:jobs, '$[*]' columns (id bigint path '$')) x
  join json_table(:versions, '$[*]' columns (version bigint path '$')) y
  join tasuki_job_version v on v.job_id = x.id and v.version = y.version
  join tasuki_job j on j.id = v.job_id
