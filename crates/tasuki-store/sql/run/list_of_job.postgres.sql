-- run/list_of_job: runs of one job, newest first. Ordered by id, like the index on the job, and only with columns of
-- that index, so that no run is read. A row comparison instead of an equality, because with the equality the planner
-- scanned all ids backwards and discarded other jobs' runs.
select '' as lane, 0::bigint as due_at, id as run_id, extra_runs
  from tasuki_run
 where extra_runs is not null
   and job_id >= :job_id
   and (job_id, id) < (:job_id, :id)
 order by job_id desc, id desc
 limit :limit
