-- event/delete: retention: delete these events. Guard: they were processed long ago.
delete from tasuki_event
 where id in (select value from json_each(:ids))
   and processed_at < :now - :min_age
