-- event/by_key: the event that was there first.
select id
  from tasuki_event
 where source = :source
   and dedupe_key = :dedupe_key
