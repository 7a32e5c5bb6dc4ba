-- run/list_scheduled: runs by planned instant, newest first, from where the last page ended. A row also stands for its
-- extra_runs. A row comparison, so that the index scan starts at that position.
select '' as lane, scheduled_for as due_at, id as run_id, extra_runs
  from tasuki_run
 where extra_runs is not null
   and scheduled_for >= :since
   and scheduled_for < :until
   and (scheduled_for, id) < (:at, :id)
 order by scheduled_for desc, id desc
 limit :limit
