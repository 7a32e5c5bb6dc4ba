-- worker/list: those who may still be there, and the clock.
select w.*, :now as clock from tasuki_worker w where w.gone_at is null order by w.started_at, w.id
