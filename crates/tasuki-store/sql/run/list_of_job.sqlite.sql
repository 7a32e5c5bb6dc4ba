-- run/list_of_job: of one job, newest first. By id, which is what the index of a job is ordered by, and
-- nothing but the id, so that the index answers alone.
select '' as lane, 0 as due_at, id as run_id, 0 as more
  from tasuki_run
 where job_id = :job_id
   and id < :id
 order by job_id desc, id desc
 limit :most
