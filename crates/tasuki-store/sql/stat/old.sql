-- stat/old: the oldest minutes, and how old is old.
select minute, :now - :age as cutoff
  from tasuki_stat
 order by minute
 limit :most
