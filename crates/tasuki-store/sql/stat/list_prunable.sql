-- stat/list_prunable: the oldest minutes, and the instant before which a minute is old enough to delete.
select minute, :now - :min_age as cutoff
  from tasuki_stat
 order by minute
 limit :limit
