-- run/list_of_job: of one job, newest first. By id, which is what the index of a job is ordered by.
select '' as place, scheduled_for as sort_at, id, job_id, state, origin, scope_kind, scope_id, scheduled_for
  from tasuki_run
 where job_id = :job_id
   and id < :id
 order by id desc
 limit :most
