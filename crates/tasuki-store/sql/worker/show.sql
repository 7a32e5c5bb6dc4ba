-- worker/show: one worker, and the clock.
select w.*, :now as clock from tasuki_worker w where w.id = :id
