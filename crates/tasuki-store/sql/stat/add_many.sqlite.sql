-- stat/add_many: count ended runs, in the transaction that ended them.
insert into tasuki_stat (minute, job_id, outcome, worker_id, shard, runs, wait_us, run_us)
select max(finished_at) / 60000000, job_id, state, worker_id, 0, count(*),
       sum(max(started_at - coalesce(next_retry_at, scheduled_for), 0)),
       sum(max(finished_at - started_at, 0))
  from tasuki_run
 where id in (select value from json_each(:ids))
 group by job_id, state, worker_id
on conflict (minute, job_id, outcome, worker_id, shard) do update
   set runs = tasuki_stat.runs + excluded.runs,
       wait_us = tasuki_stat.wait_us + excluded.wait_us,
       run_us = tasuki_stat.run_us + excluded.run_us
