-- event/list_prunable: the next events by id, and the instant before which a processed event is old enough to delete.
select id, created_at, :now - :min_age as cutoff
  from tasuki_event
 where id > :id
 order by id
 limit :limit
