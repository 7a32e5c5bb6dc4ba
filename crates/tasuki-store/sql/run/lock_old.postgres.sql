-- run/lock_old: which of these have ended long ago, held still: a retry by hand may be on its way.
select id
  from tasuki_run
 where id = any(:ids)
   and finished_at < :now - :age
 order by id
   for update
