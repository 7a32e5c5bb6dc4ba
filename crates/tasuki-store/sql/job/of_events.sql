-- job/of_events: definitions that events start, from where the last page ended, with what their runs are made of now.
select *
  from tasuki_job_now
 where trigger_type = 'event'
   and id > :after
   and deleted_at is null
 order by id
 limit :most
