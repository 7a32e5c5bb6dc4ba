-- run/list_scheduled: by planned instant, newest first, from where the last page ended. A row stands for those that are listed with it.
-- As a pair, so that the index begins where the page does.
select '' as lane, scheduled_for as due_at, id as run_id, more
  from tasuki_run
 where more is not null
   and scheduled_for >= :since
   and scheduled_for < :until
   and (scheduled_for, id) < (:at, :id)
 order by scheduled_for desc, id desc
 limit :most
