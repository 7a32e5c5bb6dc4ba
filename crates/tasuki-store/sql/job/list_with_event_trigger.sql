-- job/list_with_event_trigger: jobs with an event trigger, from where the last page ended, with their newest versions.
select *
  from tasuki_job_current
 where trigger_type = 'event'
   and id > :after
   and deleted_at is null
 order by id
 limit :limit
