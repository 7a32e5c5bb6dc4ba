-- run/assign_batch: T1 for a batch in one round trip, in this order: epoch, free slots, due rows, holds, runs, lease.
-- Every picked run is assigned: all conditions that could refuse it are checked before its due row is deleted, and no
-- other transaction can take a waiting run whose due row is locked here. At least one row is returned, with the number
-- of free slots.
with capacity as materialized (
    select tasuki_free_slots(:epoch, :worker_id, :now) as free_slots
), clock as materialized (
    select :now as now from capacity
), picked as materialized (
    select d.ctid as row_ctid, d.due_at, d.run_id, d.exclusive, r.job_id, r.scope_kind, r.scope_id
      from unnest(:ids::bigint[], :attempts::bigint[]) with ordinality as g (run_id, attempt_no, nth)
      join tasuki_run r on r.id = g.run_id
      join tasuki_due d on d.lane = r.lane and d.due_at = coalesce(r.next_retry_at, r.scheduled_for) and d.run_id = r.id
     where r.attempt_no = g.attempt_no
       -- Rows that stand for several runs can only be claimed.
       and d.extra_runs = 0
       and d.due_at <= (select now from clock) + :assign_ahead
       and (d.skip_at is null or d.skip_at >= (select now from clock))
       -- Skip runs whose hold is taken, so that they do not use the limit up. The insert into tasuki_hold decides.
       and (d.exclusive = 0 or not exists (
               select
                 from tasuki_hold h
                where h.job_id = r.job_id and h.scope_kind = r.scope_kind and h.scope_id = r.scope_id))
     order by g.nth
     limit greatest((select free_slots from capacity), 0)
       for update of d skip locked
), held as (
    insert into tasuki_hold (job_id, scope_kind, scope_id, run_id, token)
    select job_id, scope_kind, scope_id, run_id, :token
      from picked
     where exclusive = 1
     order by job_id, scope_kind, scope_id, due_at, run_id
    on conflict do nothing
    returning run_id
), removed as (
    delete from tasuki_due d
     using picked
     where d.ctid = picked.row_ctid
       and (picked.exclusive = 0 or picked.run_id in (select run_id from held))
    returning d.run_id, d.due_at
), moved as (
    update tasuki_run r
       set state = 'ASSIGNED',
           attempt_no = r.attempt_no + 1,
           worker_id = :worker_id,
           lease_token = :token,
           epoch = :epoch,
           assigned_at = clock.now,
           start_by = greatest(removed.due_at, clock.now) + :reassign_after,
           version = r.version + 1
      from removed, clock
     where r.id = removed.run_id
       and r.state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')
       and r.cancel_requested_at is null
    returning r.id, r.start_by
), leased as (
    insert into tasuki_lease (token, worker_id, epoch, lease_until, heartbeat_at, run_ids)
    select :token, :worker_id, :epoch, max(start_by), (select now from clock), '[' || string_agg(id::text, ',' order by id) || ']'
      from moved
    having count(*) > 0
)
select capacity.free_slots, moved.id from capacity left join moved on true
