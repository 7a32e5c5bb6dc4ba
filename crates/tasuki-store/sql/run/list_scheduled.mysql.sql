-- run/list_scheduled: runs by planned instant, newest first, from where the last page ended. Spelled out, because
-- MariaDB uses no index for a row comparison.
select '' as lane, scheduled_for as due_at, id as run_id, 0 as extra_runs
  from tasuki_run
 where scheduled_for >= :since
   and scheduled_for < :until
   and (scheduled_for < :at or (scheduled_for = :at and id < :id))
 order by scheduled_for desc, id desc
 limit :limit
