-- run/list_scheduled: by planned instant, newest first, from where the last page ended.
-- Written out: pairs are not compared by an index here.
select '' as lane, scheduled_for as due_at, id as run_id, 0 as more
  from tasuki_run
 where scheduled_for >= :since
   and scheduled_for < :until
   and (scheduled_for < :at or (scheduled_for = :at and id < :id))
 order by scheduled_for desc, id desc
 limit :most
