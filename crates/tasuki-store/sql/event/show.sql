-- event/show: one event.
select * from tasuki_event where id = :id
