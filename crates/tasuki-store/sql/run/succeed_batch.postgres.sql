-- run/succeed_batch: T4 for a whole batch in one round trip: outcomes on the rows, holds given back, runs counted, and the
-- lease closed if nothing else can be under it. The lease is locked before its runs, as everywhere.
with clock as materialized (
    select :now as now
), whole as materialized (
    select token
      from tasuki_lease
     where token = :token
       and json_array_length(run_ids::json) = cardinality(:ids::bigint[])
       for update
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
       and (select count(*) from whole) < 2
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
    insert into tasuki_stat (minute, job_id, outcome, worker_id, part, runs, wait_us, run_us)
    select (select now from clock) / 60000000, job_id, 'SUCCEEDED', worker_id, pg_backend_pid() & 7, count(*),
           sum(greatest(started_at - due_at, 0)), sum(greatest(finished_at - started_at, 0))
      from done
     group by job_id, worker_id
     order by job_id, worker_id
    on conflict (minute, job_id, outcome, worker_id, part) do update
       set runs = tasuki_stat.runs + excluded.runs,
           wait_us = tasuki_stat.wait_us + excluded.wait_us,
           run_us = tasuki_stat.run_us + excluded.run_us
), closed as (
    delete from tasuki_lease l
     using whole
     where l.token = whole.token
       and (select count(*) from done) = cardinality(:ids::bigint[])
    returning l.token
)
select id, (select count(*) from closed) as closed from done
