-- worker/find: one worker.
select * from tasuki_worker where id = :id
