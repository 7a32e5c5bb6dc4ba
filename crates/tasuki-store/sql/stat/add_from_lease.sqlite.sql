-- stat/add_from_lease: count ended runs, in the transaction that ended them, if they are all runs of a lease and of one
-- job. They started at the same instant, and the lease has the sum of the instants at which they became due, so no run
-- is read.
insert into tasuki_stat (minute, job_id, outcome, worker_id, shard, runs, wait_us, run_us)
select r.finished_at / 60000000, l.job_id, 'SUCCEEDED', r.worker_id, 0, :count,
       max(:count * r.started_at - l.due_at_sum, 0),
       max(:count * (r.finished_at - r.started_at), 0)
  from tasuki_lease l
 cross join tasuki_run_state r on r.id = l.first_run
 where l.token = :token
   and l.first_run = :first
   and l.last_run = :last
   and l.job_id is not null
on conflict (minute, job_id, outcome, worker_id, shard) do update
   set runs = tasuki_stat.runs + excluded.runs,
       wait_us = tasuki_stat.wait_us + excluded.wait_us,
       run_us = tasuki_stat.run_us + excluded.run_us
