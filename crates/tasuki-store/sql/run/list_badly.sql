-- run/list_badly: what ended badly, latest first.
select '' as place, ended_badly_at as sort_at, id, job_id, state, origin, scope_kind, scope_id, scheduled_for
  from tasuki_run
 where ended_badly_at <= :at
   and (ended_badly_at < :at or id < :id)
 order by ended_badly_at desc, id desc
 limit :most
