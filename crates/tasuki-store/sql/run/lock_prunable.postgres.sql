-- run/lock_prunable: retention: lock those of these runs that ended long ago, because a manual retry may be under way.
select id
  from tasuki_run
 where id = any(:ids)
   and finished_at < :now - :min_age
 order by id
   for update
