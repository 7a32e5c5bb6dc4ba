-- run/list_by_ids: these runs.
select *
  from tasuki_run
 where id in (select value from json_each(:ids))
