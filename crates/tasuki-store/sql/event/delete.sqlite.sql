-- event/delete: retention. Only what was taken long ago.
delete from tasuki_event
 where id in (select value from json_each(:ids))
   and processed_at < :now - :age
