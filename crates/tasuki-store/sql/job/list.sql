-- job/list: jobs by name, from where the last page ended, with their newest versions.
select *
  from tasuki_job_current
 where name > :after
   and deleted_at is null
 order by name
 limit :limit
