-- run/delete: retention. Locked, and looked at; the trigger refuses what has not ended.
delete from tasuki_run
 where id = any(:ids)
