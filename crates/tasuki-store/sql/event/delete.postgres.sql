-- event/delete: retention. Only what was taken long ago.
delete from tasuki_event
 where id = any(:ids)
   and processed_at < :now - :age
