-- job/find_by_name: one job by its name, with its newest version.
select *
  from tasuki_job_current
 where name = :name
