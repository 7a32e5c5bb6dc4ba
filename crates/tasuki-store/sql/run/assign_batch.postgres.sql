-- run/assign_batch: T1 for a whole batch in one round trip: fence, room, due rows, holds, runs, lease, in that order.
-- What is picked is moved: everything that could refuse a run is asked before its due row is deleted, and nobody else can
-- move a waiting run whose due row is locked here. One row always comes back, to tell how much room there was.
with room as materialized (
    select tasuki_room(:epoch, :worker_id, :now) as free
), clock as materialized (
    select :now as now from room
), picked as materialized (
    select d.ctid as place, d.due_at, d.run_id, d.exclusive, r.job_id, r.scope_kind, r.scope_id
      from unnest(:ids::bigint[], :attempts::bigint[]) with ordinality as g (run_id, attempt_no, place)
      join tasuki_run r on r.id = g.run_id
      join tasuki_due d on d.lane = r.lane and d.due_at = coalesce(r.next_retry_at, r.scheduled_for) and d.run_id = r.id
     where r.attempt_no = g.attempt_no
       -- What waits together is there to be claimed.
       and d.more = 0
       and d.due_at <= (select now from clock) + :assign_ahead
       and (d.skip_at is null or d.skip_at >= (select now from clock))
       -- Passed over here, so that a run that must wait does not use up the room of one that need not; the hold decides.
       and (d.exclusive = 0 or not exists (
               select
                 from tasuki_hold h
                where h.job_id = r.job_id and h.scope_kind = r.scope_kind and h.scope_id = r.scope_id))
     order by g.place
     limit greatest((select free from room), 0)
       for update of d skip locked
), held as (
    insert into tasuki_hold (job_id, scope_kind, scope_id, run_id, token)
    select job_id, scope_kind, scope_id, run_id, :token
      from picked
     where exclusive = 1
     order by job_id, scope_kind, scope_id, due_at, run_id
    on conflict do nothing
    returning run_id
), gone as (
    delete from tasuki_due d
     using picked
     where d.ctid = picked.place
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
           start_by = greatest(gone.due_at, clock.now) + :reassign_after,
           version = r.version + 1
      from gone, clock
     where r.id = gone.run_id
       and r.state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')
       and r.cancel_requested_at is null
    returning r.id, r.start_by
), leased as (
    insert into tasuki_lease (token, worker_id, epoch, lease_until, heartbeat_at, run_ids)
    select :token, :worker_id, :epoch, max(start_by), (select now from clock), '[' || string_agg(id::text, ',' order by id) || ']'
      from moved
    having count(*) > 0
)
select room.free, moved.id from room left join moved on true
