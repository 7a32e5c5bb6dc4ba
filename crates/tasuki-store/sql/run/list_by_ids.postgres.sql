-- run/list_by_ids: these runs.
select *
  from tasuki_run
 where id = any(:ids)
