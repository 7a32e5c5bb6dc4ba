-- run/list_scheduled: by planned instant, newest first, from where the last page ended. Only what a filter looks at.
-- As a pair, so that the index begins where the page does.
select '' as place, scheduled_for as sort_at, id, job_id, state, origin, scope_kind, scope_id, scheduled_for
  from tasuki_run
 where scheduled_for >= :since
   and scheduled_for < :until
   and (scheduled_for, id) < (:at, :id)
 order by scheduled_for desc, id desc
 limit :most
