-- run/list_of_job: runs of one job, newest first. Ordered by id, like the index on the job, and only with columns of
-- that index, so that no run is read.
select '' as lane, 0 as due_at, id as run_id, 0 as extra_runs
  from tasuki_run
 where job_id = :job_id
   and id < :id
 order by job_id desc, id desc
 limit :limit
