-- job/list: definitions by name, from where the last page ended, with what their runs are made of now.
select *
  from tasuki_job_now
 where name > :after
   and deleted_at is null
 order by name
 limit :most
