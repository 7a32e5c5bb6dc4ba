-- worker/show: one worker.
select * from tasuki_worker where id = :id
