-- job/find_by_id: one job with its newest version.
select *
  from tasuki_job_current
 where id = :id
