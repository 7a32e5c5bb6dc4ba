-- worker/list: all workers that have not left, and the database's clock.
select w.*, :now as clock from tasuki_worker w where w.gone_at is null order by w.started_at, w.id
