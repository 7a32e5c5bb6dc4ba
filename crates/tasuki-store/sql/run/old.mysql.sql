-- run/old: the next runs that were planned long ago. By planned instant: it is indexed, and nothing ends before it begins to
-- wait. Written out: pairs are not compared by an index here.
select scheduled_for, id as run_id, 0 as more
  from tasuki_run
 where scheduled_for < :now - :age
   and (scheduled_for > :at or (scheduled_for = :at and id > :id))
 order by scheduled_for, id
 limit :most
