-- event/find_by_key: the event that already has this source and dedupe key.
select id
  from tasuki_event
 where source = :source
   and dedupe_key = :dedupe_key
