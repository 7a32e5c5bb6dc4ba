-- worker/lock: lock one worker while runs are assigned to it.
select * from tasuki_worker where id = :id for update
