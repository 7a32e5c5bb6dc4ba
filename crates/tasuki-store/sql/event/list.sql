-- event/list: events, newest first, from where the last page ended.
select *
  from tasuki_event
 where id < :before
 order by id desc
 limit :limit
