-- stat/add: count an ended run, in the transaction that ended it.
insert into tasuki_stat (minute, job_id, outcome, worker_id, shard, runs, wait_us, run_us)
select :now / 60000000, job_id, state, coalesce(worker_id, zeroblob(16)), 0, 1,
       case when started_at is null then 0 else max(started_at - coalesce(next_retry_at, scheduled_for), 0) end,
       case when started_at is null then 0 else max(finished_at - started_at, 0) end
  from tasuki_run
 where id = :run_id
on conflict (minute, job_id, outcome, worker_id, shard) do update
   set runs = tasuki_stat.runs + 1,
       wait_us = tasuki_stat.wait_us + excluded.wait_us,
       run_us = tasuki_stat.run_us + excluded.run_us
