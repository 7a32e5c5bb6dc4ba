-- run/list_of_job: of one job, newest first. By id, which is what the index of a job is ordered by, and
-- nothing but the id and how many it stands for, so that the index answers alone.
-- As a pair and not as an equality: with that the planner walked down all ids and threw other jobs' away.
select '' as lane, 0::bigint as due_at, id as run_id, more
  from tasuki_run
 where more is not null
   and job_id >= :job_id
   and (job_id, id) < (:job_id, :id)
 order by job_id desc, id desc
 limit :most
