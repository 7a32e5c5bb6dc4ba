-- run/list_badly: what ended badly, latest first.
select '' as lane, ended_badly_at as due_at, id as run_id, 0 as more
  from tasuki_run
 where ended_badly_at <= :at
   and (ended_badly_at < :at or id < :id)
 order by ended_badly_at desc, id desc
 limit :most
