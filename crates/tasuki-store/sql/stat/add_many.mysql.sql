-- stat/add_many: count ended runs, in the transaction that ended them.
insert into tasuki_stat (minute, job_id, outcome, worker_id, shard, runs, wait_us, run_us)
select max(r.finished_at) div 60000000, r.job_id, r.state, r.worker_id, connection_id() & 7, count(*),
       sum(greatest(r.started_at - coalesce(r.next_retry_at, r.scheduled_for), 0)),
       sum(greatest(r.finished_at - r.started_at, 0))
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
 group by r.job_id, r.state, r.worker_id
on duplicate key update
       runs = tasuki_stat.runs + values(runs),
       wait_us = tasuki_stat.wait_us + values(wait_us),
       run_us = tasuki_stat.run_us + values(run_us)
