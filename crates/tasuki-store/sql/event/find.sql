-- event/find: one event.
select * from tasuki_event where id = :id
