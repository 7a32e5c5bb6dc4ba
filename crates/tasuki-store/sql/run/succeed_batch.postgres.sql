-- run/succeed_batch: T4 for a batch in one round trip, with any number of leases: write outcomes, release holds, count
-- the runs, store captured output, and delete those leases that the worker considers finished, if no run is left under
-- them. Leases are locked before their runs, as everywhere, and in the order of their tokens. Runs with consecutive ids
-- and the same report are passed as the first and the last id, so that the index is descended once for all of them.
-- The clock may have been set back since the start; a run never ends before its start.
with clock as materialized (
    select :now as now
), closing as materialized (
    select token, run_ids
      from tasuki_lease
     where token = any(:closing_tokens::uuid[])
     order by token
       for update
), succeeded as (
    update tasuki_run r
       set state = 'SUCCEEDED',
           outcome = 'SUCCEEDED',
           finished_at = greatest(clock.now, r.started_at),
           exit_code = g.exit_code,
           result = g.result,
           rows_affected = g.rows_affected,
           log_ref = g.log_ref,
           version = r.version + 1
      from unnest(:firsts::bigint[], :lasts::bigint[], :tokens::uuid[], :exit_codes::bigint[], :results::text[], :rows_affected::bigint[],
                  :log_refs::text[]) as g (first, last, token, exit_code, result, rows_affected, log_ref), clock
     where r.id between g.first and g.last
       and r.state = 'RUNNING'
       and r.lease_token = g.token
       and (select count(*) from closing) >= 0
    returning r.id, r.attempt_no, r.lease_token, r.job_id, r.scope_kind, r.scope_id, r.exclusive, r.worker_id,
              greatest(r.started_at - coalesce(r.next_retry_at, r.scheduled_for), 0) as waited_us,
              greatest(r.finished_at - r.started_at, 0) as ran_us
), freed as (
    delete from tasuki_hold h
     using succeeded d
     where d.exclusive = 1
       and h.job_id = d.job_id
       and h.scope_kind = d.scope_kind
       and h.scope_id = d.scope_id
       and h.run_id = d.id
       and h.token = d.lease_token
), output as materialized (
    select distinct on (p.run_id) p.run_id, p.attempt_no, p.lines_count, p.bytes, p.body
      from unnest(:output_run_ids::bigint[], :output_attempts::bigint[], :output_tokens::uuid[], :lines_counts::bigint[], :bytes::bigint[], :bodies::text[])
           as p (run_id, attempt_no, token, lines_count, bytes, body)
      join succeeded d on d.id = p.run_id and d.attempt_no = p.attempt_no and d.lease_token = p.token
), created_logs as (
    insert into tasuki_log (run_id, attempt_no, lines_count, bytes)
    select run_id, attempt_no, lines_count, bytes
      from output
    on conflict do nothing
    returning run_id, attempt_no
), added as (
    insert into tasuki_log_chunk (run_id, attempt_no, first_line, last_line, at, body)
    select p.run_id, p.attempt_no, 0, p.lines_count - 1, (select now from clock), p.body
      from created_logs
      join output p on p.run_id = created_logs.run_id and p.attempt_no = created_logs.attempt_no
), ends as materialized (
    -- Group the runs into a few rows, which the following parts read.
    select lease_token, job_id, worker_id, count(*) as runs, sum(waited_us) as wait_us, sum(ran_us) as run_us
      from succeeded
     group by lease_token, job_id, worker_id
), counted as (
    insert into tasuki_stat (minute, job_id, outcome, worker_id, shard, runs, wait_us, run_us)
    select (select now from clock) / 60000000, job_id, 'SUCCEEDED', worker_id, pg_backend_pid() & 7, sum(runs), sum(wait_us), sum(run_us)
      from ends
     group by job_id, worker_id
     order by job_id, worker_id
    on conflict (minute, job_id, outcome, worker_id, shard) do update
       set runs = tasuki_stat.runs + excluded.runs,
           wait_us = tasuki_stat.wait_us + excluded.wait_us,
           run_us = tasuki_stat.run_us + excluded.run_us
), closed as (
    -- Runs only ever leave a lease, so one that is not seen here does not appear later. The runs that this statement ends are
    -- still seen as before.
    delete from tasuki_lease l
     using closing c
     where l.token = c.token
       and (json_array_length(c.run_ids::json) = (select sum(runs) from ends where lease_token = c.token)
            or not exists (
                select
                  from tasuki_run r
                 where r.id = any(array(select x.id::bigint from json_array_elements_text(c.run_ids::json) as x (id)))
                   and r.lease_token = c.token
                   and r.state in ('ASSIGNED', 'RUNNING')
                   and r.id not in (select id from succeeded)))
    returning l.token
)
-- The ended runs are listed only if some did not end: a result row for each run would double the cost.
select coalesce(sum(runs), 0)::bigint as ended_count,
       case when coalesce(sum(runs), 0) < :count::bigint then (select string_agg(id || '/' || lease_token, ' ') from succeeded) end as ended_runs,
       (select string_agg(token::text, ' ') from closed) as closed_tokens
  from ends
