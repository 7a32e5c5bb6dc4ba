-- event/list_unprocessed: unprocessed events, oldest first.
select *
  from tasuki_event
 where processed_at is null
 order by id
 limit :limit
