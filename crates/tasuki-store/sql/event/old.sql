-- event/old: the next events, and how old is old.
select id, created_at, :now - :age as cutoff
  from tasuki_event
 where id > :id
 order by id
 limit :most
