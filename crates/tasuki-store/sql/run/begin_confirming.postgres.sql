-- run/begin_confirming: T15, RUNNING, NONE -> CONFIRMING, for all runs of a worker in one round trip, with transition
-- records. The deadline is never later than the end of the lease.
with clock as materialized (
    select :now as now
), marked as (
    update tasuki_run r
       set continuation = 'CONFIRMING',
           continuation_started_at = clock.now,
           continuation_deadline = least(clock.now + :confirm_timeout, l.lease_until),
           version = r.version + 1
      from unnest(:ids::bigint[], :tokens::uuid[], :token_hashes::text[]) as g (id, token, token_hash)
      join tasuki_lease l on l.token = g.token
     cross join clock
     where r.id = g.id
       and r.state = 'RUNNING'
       and r.lease_token = g.token
       and coalesce(r.continuation, 'NONE') = 'NONE'
    returning r.id, r.attempt_no, g.token_hash, clock.now
)
insert into tasuki_run_note (run_id, attempt_no, verb, actor, reason, epoch, token_hash, at)
select id, attempt_no, 'confirm', 'worker', :reason, null, token_hash, now from marked
returning run_id as id
