-- stat/add_single_job: like stat/add_from_lease, for runs of one job that are not all runs of a lease; with one scan.
-- If one of the runs has a hold to release, json() fails and the whole transaction is rolled back.
insert into tasuki_stat (minute, job_id, outcome, worker_id, shard, runs, wait_us, run_us)
select max(r.finished_at) / 60000000, min(r.job_id), 'SUCCEEDED', min(r.worker_id), 0, count(*),
       sum(max(r.started_at - coalesce(r.next_retry_at, r.scheduled_for), 0)),
       sum(max(r.finished_at - r.started_at, 0))
  from json_each(case when exists (
               select 1
                 from tasuki_lease
                where token = :token
                  and first_run = :first
                  and last_run = :last
                  and job_id is not null)
           then '[]' else :ids end) x
 cross join tasuki_run r on r.id = x.value
having json(case when coalesce(max(r.exclusive), 0) = 0 then 'true' else 'a hold' end) = 'true'
   and min(r.job_id) = max(r.job_id)
on conflict (minute, job_id, outcome, worker_id, shard) do update
   set runs = tasuki_stat.runs + excluded.runs,
       wait_us = tasuki_stat.wait_us + excluded.wait_us,
       run_us = tasuki_stat.run_us + excluded.run_us
