-- worker/lock: one worker, held still while work is given to it.
select * from tasuki_worker where id = :id for update
