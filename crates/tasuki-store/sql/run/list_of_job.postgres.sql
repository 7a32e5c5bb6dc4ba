-- run/list_of_job: of one job, newest first. By id, which is what the index of a job is ordered by, and
-- nothing but the id, so that the index answers alone.
-- As a pair and not as an equality: with that the planner walked down all ids and threw other jobs' away.
select id
  from tasuki_run
 where job_id >= :job_id
   and (job_id, id) < (:job_id, :id)
 order by job_id desc, id desc
 limit :most
