-- job/list: definitions by name, from where the last page ended.
select *
  from tasuki_job
 where name > :after
   and deleted_at is null
 order by name
 limit :most
