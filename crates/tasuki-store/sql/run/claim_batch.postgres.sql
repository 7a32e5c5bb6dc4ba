-- run/claim_batch: T1c for a whole batch in one round trip: due rows deleted, holds taken, runs moved, lease opened.
-- Nobody else can move a waiting run without its due row, and those are locked here; so what is picked is moved, and its
-- place (ctid) stays where it is. The last stretch is cut, so that no more are taken than were asked for.
with clock as materialized (
    select :now as now
), needed as materialized (
    -- How many rows stand for so many runs, whoever has them now: only so many are locked.
    select count(*) as rows, max(more) as more
      from (select d.more, sum(d.more + 1) over (order by d.due_at, d.run_id) - (d.more + 1) as before
              from (select d.due_at, d.run_id, d.more
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
                     limit :most) d) x
     where before < :most::bigint
), picked as materialized (
    select d.ctid as place, d.due_at, d.run_id, d.exclusive, d.alone, d.more
      from tasuki_due d
     where d.lane = :lane
       and d.due_at <= (select now from clock)
       and (d.due_at, d.run_id) > (:after_at, :after_run)
       and (d.skip_at is null or d.skip_at >= (select now from clock))
       -- Passed over here, so that a run that must wait does not use up the room of one that need not; the hold decides.
       -- `offset 0`: each by its key, where the planner might think of reading all runs once.
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
), lead as (
    select run_id, alone from picked order by due_at, run_id limit 1
), fit as materialized (
    -- A run that was once lost together with others is taken singly.
    select p.*, least(p.more + 1, :most::bigint - p.before) as taken
      from (select p.*, sum(p.more + 1) over (order by p.due_at, p.run_id) - (p.more + 1) as before from picked p) p, lead
     where p.before < :most::bigint
       and case when lead.alone = 1 then p.run_id = lead.run_id else p.alone = 0 end
), held as (
    insert into tasuki_hold (job_id, scope_kind, scope_id, run_id, token)
    select r.job_id, r.scope_kind, r.scope_id, r.id, :token
      from fit
      join tasuki_run r on r.id = fit.run_id
     where fit.exclusive = 1
     order by r.job_id, r.scope_kind, r.scope_id, fit.due_at, fit.run_id
    on conflict do nothing
    returning run_id
), gone as (
    delete from tasuki_due d
     using fit
     where d.ctid = fit.place
       and fit.taken > fit.more
       and (fit.exclusive = 0 or fit.run_id in (select run_id from held))
    returning fit.run_id, fit.taken
), cut as (
    update tasuki_due d
       set run_id = d.run_id + fit.taken,
           more = d.more - fit.taken
      from fit
     where d.ctid = fit.place
       and fit.taken <= fit.more
    returning fit.run_id, fit.taken
), stretches as materialized (
    -- By themselves: who has to wait for a run looks at its row again, and at this, but cannot delete due rows again.
    -- In the order of ids, in which others lock runs, too.
    select run_id, taken from gone union all select run_id, taken from cut
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
      from clock, stretches g
     -- The index is gone down once for each row of due, not once for each run.
     where r.id >= g.run_id
       and r.id < g.run_id + g.taken
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
-- Or a row of nothing: who had a stretch in hand when this began may have left some of it. A run by itself is taken.
 union all
select null, null, null, null, null, null, null, null, null, null, null, null
  from needed
 where more > 0
   and not exists (select from moved)
