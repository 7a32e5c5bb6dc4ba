-- run/succeed_batch: T4 for a whole batch in one round trip: outcomes on the rows, holds given back, runs counted.
with clock as materialized (
    select :now as now
), done as (
    update tasuki_run r
       set state = 'SUCCEEDED',
           outcome = 'SUCCEEDED',
           finished_at = clock.now,
           exit_code = g.exit_code,
           result = g.result,
           rows_affected = g.rows_affected,
           log_ref = g.log_ref,
           version = r.version + 1
      from unnest(:ids::bigint[], :exit_codes::bigint[], :results::text[], :rows_affected::bigint[], :log_refs::text[])
           as g (id, exit_code, result, rows_affected, log_ref), clock
     where r.id = g.id
       and r.state = 'RUNNING'
       and r.lease_token = :token
    returning r.id, r.job_id, r.scope_kind, r.scope_id, r.exclusive, r.worker_id, r.started_at, r.finished_at,
              coalesce(r.next_retry_at, r.scheduled_for) as due_at
), freed as (
    delete from tasuki_hold h
     using done d
     where d.exclusive = 1
       and h.job_id = d.job_id
       and h.scope_kind = d.scope_kind
       and h.scope_id = d.scope_id
       and h.run_id = d.id
       and h.token = :token
), counted as (
    insert into tasuki_stat (minute, job_id, outcome, worker_id, runs, wait_us, run_us)
    select (select now from clock) / 60000000, job_id, 'SUCCEEDED', worker_id, count(*),
           sum(greatest(started_at - due_at, 0)), sum(greatest(finished_at - started_at, 0))
      from done
     group by job_id, worker_id
     order by job_id, worker_id
    on conflict (minute, job_id, outcome, worker_id) do update
       set runs = tasuki_stat.runs + excluded.runs,
           wait_us = tasuki_stat.wait_us + excluded.wait_us,
           run_us = tasuki_stat.run_us + excluded.run_us
)
select id from done
