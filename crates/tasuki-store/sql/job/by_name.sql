-- job/by_name: one definition, by what people call it, with what its runs are made of now.
select *
  from tasuki_job_now
 where name = :name
