-- event/open: what nobody has looked at yet, oldest first.
select *
  from tasuki_event
 where processed_at is null
 order by id
 limit :most
