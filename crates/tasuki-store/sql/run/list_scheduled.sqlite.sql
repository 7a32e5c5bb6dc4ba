-- run/list_scheduled: by planned instant, newest first, from where the last page ended.
-- As a pair, so that the index begins where the page does.
select '' as lane, scheduled_for as due_at, id as run_id, 0 as more
  from tasuki_run
 where scheduled_for >= :since
   and scheduled_for < :until
   and (scheduled_for, id) < (:at, :id)
 order by scheduled_for desc, id desc
 limit :most
