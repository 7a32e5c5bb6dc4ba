-- job/versions: what runs were made of, with the names of their jobs. Some more than were asked for may be among them. A list
-- is a JSON text here.
select j.name, v.*
  from json_table(:jobs, '$[*]' columns (id bigint path '$')) x
  join json_table(:versions, '$[*]' columns (version bigint path '$')) y
  join tasuki_job_version v on v.job_id = x.id and v.version = y.version
  join tasuki_job j on j.id = v.job_id
