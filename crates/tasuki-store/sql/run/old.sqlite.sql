-- run/old: the next runs that were planned long ago. By planned instant: it is indexed, and nothing ends before it begins to
-- wait. As a pair, so that the index begins where the page does.
select scheduled_for, id as run_id, 0 as more
  from tasuki_run
 where scheduled_for < :now - :age
   and (scheduled_for, id) > (:at, :id)
 order by scheduled_for, id
 limit :most
