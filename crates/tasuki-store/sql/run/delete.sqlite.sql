-- run/delete: retention: delete these runs. The caller has locked and checked them; a trigger refuses runs that have
-- not ended.
delete from tasuki_run_state
 where id in (select value from json_each(:ids))
