-- worker/list: those who may still be there.
select * from tasuki_worker where gone_at is null order by started_at, id
