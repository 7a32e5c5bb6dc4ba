-- run/list_scheduled: by planned instant, newest first, from where the last page ended. Only what a filter looks at.
-- Written out: pairs are not compared by an index here.
select '' as place, scheduled_for as sort_at, id, job_id, state, origin, scope_kind, scope_id, scheduled_for
  from tasuki_run
 where scheduled_for >= :since
   and scheduled_for < :until
   and (scheduled_for < :at or (scheduled_for = :at and id < :id))
 order by scheduled_for desc, id desc
 limit :most
