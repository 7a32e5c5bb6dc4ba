-- run/list_prunable: retention: the next runs that were planned long ago. Searched by planned instant, which has an
-- index; a run never ends before its planned instant. Spelled out, because MariaDB uses no index for a row comparison.
select scheduled_for, id as run_id, 0 as extra_runs
  from tasuki_run
 where scheduled_for < :now - :min_age
   and (scheduled_for > :at or (scheduled_for = :at and id > :id))
 order by scheduled_for, id
 limit :limit
