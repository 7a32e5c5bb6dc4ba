-- run/claim_batch: T1c for a batch in one round trip: delete due rows, acquire holds, update runs, create the lease. No
-- other transaction can take a waiting run without its due row, and those rows are locked here; so every picked run is
-- claimed, and the ctid of a picked row stays valid. The last id range is split if it has more runs than requested.
with clock as materialized (
    select :now as now
), needed as materialized (
    -- How many due rows contain the requested number of runs, including rows that others have locked: lock no more rows than that.
    select count(*) as rows, max(extra_runs) as extra_runs
      from (select d.extra_runs, sum(d.extra_runs + 1) over (order by d.due_at, d.run_id) - (d.extra_runs + 1) as runs_before
              from (select d.due_at, d.run_id, d.extra_runs
                      from tasuki_due d
                     where d.lane = :lane
                       and d.due_at <= (select now from clock)
                       and (d.due_at, d.run_id) > (:after_at, :after_run)
                       and (d.skip_at is null or d.skip_at >= (select now from clock))
                       and (d.exclusive = 0 or not exists (
                               select
                                 from (select job_id, scope_kind, scope_id from tasuki_run where id = d.run_id offset 0) r
                                 join tasuki_hold h on h.job_id = r.job_id and h.scope_kind = r.scope_kind and h.scope_id = r.scope_id))
                     order by d.due_at, d.run_id
                     limit :limit) d) x
     where runs_before < :limit::bigint
), picked as materialized (
    select d.ctid as row_ctid, d.due_at, d.run_id, d.exclusive, d.isolated, d.extra_runs
      from tasuki_due d
     where d.lane = :lane
       and d.due_at <= (select now from clock)
       and (d.due_at, d.run_id) > (:after_at, :after_run)
       and (d.skip_at is null or d.skip_at >= (select now from clock))
       -- Skip runs whose hold is taken, so that they do not use the limit up. The insert into tasuki_hold decides.
       -- `offset 0` makes the planner read each run by its key; it might otherwise scan all runs once.
       and (d.exclusive = 0 or not exists (
               select
                 from (select job_id, scope_kind, scope_id from tasuki_run where id = d.run_id offset 0) r
                 join tasuki_hold h on h.job_id = r.job_id and h.scope_kind = r.scope_kind and h.scope_id = r.scope_id))
       and exists (select from tasuki_worker w
                    where w.id = :worker_id
                      and w.draining_at is null and w.detached_at is null and w.dead_at is null and w.gone_at is null)
     order by d.due_at, d.run_id
     limit (select rows from needed)
       for update of d skip locked
), first_row as (
    select run_id, isolated from picked order by due_at, run_id limit 1
), fitting as materialized (
    -- An isolated run, which was lost together with others before, is claimed without any other run.
    select p.*, least(p.extra_runs + 1, :limit::bigint - p.runs_before) as claimed
      from (select p.*, sum(p.extra_runs + 1) over (order by p.due_at, p.run_id) - (p.extra_runs + 1) as runs_before from picked p) p, first_row
     where p.runs_before < :limit::bigint
       and case when first_row.isolated = 1 then p.run_id = first_row.run_id else p.isolated = 0 end
), held as (
    insert into tasuki_hold (job_id, scope_kind, scope_id, run_id, token)
    select r.job_id, r.scope_kind, r.scope_id, r.id, :token
      from fitting
      join tasuki_run r on r.id = fitting.run_id
     where fitting.exclusive = 1
     order by r.job_id, r.scope_kind, r.scope_id, fitting.due_at, fitting.run_id
    on conflict do nothing
    returning run_id
), removed as (
    delete from tasuki_due d
     using fitting
     where d.ctid = fitting.row_ctid
       and fitting.claimed > fitting.extra_runs
       and (fitting.exclusive = 0 or fitting.run_id in (select run_id from held))
    returning fitting.run_id, fitting.claimed
), split as (
    update tasuki_due d
       set run_id = d.run_id + fitting.claimed,
           extra_runs = d.extra_runs - fitting.claimed
      from fitting
     where d.ctid = fitting.row_ctid
       and fitting.claimed <= fitting.extra_runs
    returning fitting.run_id, fitting.claimed
), ranges as materialized (
    -- Materialized: if the update below waits for a run's lock, PostgreSQL evaluates the row again, but it cannot delete
    -- due rows again. Ordered by id, because other statements lock runs in this order too.
    select run_id, claimed from removed union all select run_id, claimed from split
     order by run_id
), moved as (
    update tasuki_run r
       set state = 'RUNNING',
           attempt_no = r.attempt_no + 1,
           tries = r.tries + 1,
           releases = 0,
           worker_id = :worker_id,
           lease_token = :token,
           assigned_at = clock.now,
           started_at = clock.now,
           version = r.version + 1
      from clock, ranges g
     -- A range condition, so that the index is descended once for each due row and not once for each run.
     where r.id >= g.run_id
       and r.id < g.run_id + g.claimed
       and r.state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')
       and r.cancel_requested_at is null
       and r.tries < r.tries_allowed
    returning r.id, r.job_id, r.job_version, r.origin, r.scope_kind, r.scope_id, r.scheduled_for, r.next_retry_at,
              r.attempt_no, r.tries, r.event_id, r.args
), leased as (
    insert into tasuki_lease (token, worker_id, lease_until, heartbeat_at, run_ids)
    select :token, :worker_id, (select now from clock) + :ttl, (select now from clock), '[' || string_agg(id::text, ',' order by id) || ']'
      from moved
    having count(*) > 0
)
select * from moved
-- A row of nulls tells the caller to try again: the transaction that had an id range locked may have left runs in it.
-- (A locked row of a single run would be gone.)
 union all
select null, null, null, null, null, null, null, null, null, null, null, null
  from needed
 where extra_runs > 0
   and not exists (select from moved)
