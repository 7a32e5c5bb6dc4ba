-- run/delete: retention. Locked, and looked at; the trigger refuses what has not ended.
delete from tasuki_run_life
 where id in (select value from json_each(:ids))
