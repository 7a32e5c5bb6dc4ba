-- run/list_of_job: of one job, newest first. By id, which is what the index of a job is ordered by, and
-- nothing but the id, so that the index answers alone.
select id
  from tasuki_run
 where job_id = :job_id
   and id < :id
 order by job_id desc, id desc
 limit :most
