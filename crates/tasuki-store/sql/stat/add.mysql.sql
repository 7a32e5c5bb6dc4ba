-- stat/add: count an ended run, in the transaction that ended it.
insert into tasuki_stat (minute, job_id, outcome, worker_id, shard, runs, wait_us, run_us)
select :now div 60000000, job_id, state, coalesce(worker_id, repeat(x'00', 16)), connection_id() & 7, 1,
       case when started_at is null then 0 else greatest(started_at - coalesce(next_retry_at, scheduled_for), 0) end,
       case when started_at is null then 0 else greatest(finished_at - started_at, 0) end
  from tasuki_run
 where id = :run_id
on duplicate key update
       runs = tasuki_stat.runs + 1,
       wait_us = tasuki_stat.wait_us + values(wait_us),
       run_us = tasuki_stat.run_us + values(run_us)
