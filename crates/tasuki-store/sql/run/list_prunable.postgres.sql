-- run/list_prunable: retention: the next runs that were planned long ago. Searched by planned instant, which has an
-- index; a run never ends before its planned instant. A row comparison, so that the index scan starts at that position.
select scheduled_for, id as run_id, extra_runs
  from tasuki_run
 where extra_runs is not null
   and scheduled_for < :now - :min_age
   and (scheduled_for, id) > (:at, :id)
 order by scheduled_for, id
 limit :limit
