-- cursor/list_of_job: every cursor of a job.
select c.job_id, c.scope_kind, c.scope_id, c.next_fire, j.version as job_version
  from tasuki_cursor c
  join tasuki_job j on j.id = c.job_id
 where c.job_id = :job_id
