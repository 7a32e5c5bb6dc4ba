-- run/list_scheduled: runs by planned instant, newest first, from where the last page ended. A row comparison, so that
-- the index scan starts at that position.
select '' as lane, scheduled_for as due_at, id as run_id, 0 as extra_runs
  from tasuki_run
 where scheduled_for >= :since
   and scheduled_for < :until
   and (scheduled_for, id) < (:at, :id)
 order by scheduled_for desc, id desc
 limit :limit
