-- run/end_confirming: T15, RUNNING, CONFIRMING -> NONE, for all runs that a worker may continue, in one round trip,
-- with transition records. Guard: before the deadline; or again, if the first response was lost.
with clock as materialized (
    select :now as now
), marked as (
    update tasuki_run r
       set continuation = 'NONE',
           version = r.version + 1
      from unnest(:ids::bigint[], :tokens::uuid[], :token_hashes::text[]) as g (id, token, token_hash), clock
     where r.id = g.id
       and r.state = 'RUNNING'
       and r.lease_token = g.token
       and (r.continuation = 'NONE' or r.continuation = 'CONFIRMING' and r.continuation_deadline > clock.now)
    returning r.id, r.attempt_no, g.token_hash, clock.now
)
insert into tasuki_run_note (run_id, attempt_no, verb, actor, reason, epoch, token_hash, at)
select id, attempt_no, 'confirm', 'worker', :reason, null, token_hash, now from marked
returning run_id as id
