-- run/delete: retention: delete these runs. The caller has locked and checked them; a trigger refuses runs that have
-- not ended.
delete from tasuki_run
 where id = any(:ids)
