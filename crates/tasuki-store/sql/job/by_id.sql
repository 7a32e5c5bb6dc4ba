-- job/by_id: one definition, with what its runs are made of now.
select *
  from tasuki_job_now
 where id = :id
