-- run/insert_alike: T0 in one round trip for runs that differ in nothing but what they are given, and of which none can be
-- there already: what most tasks are that are submitted together. One list instead of seventeen, and one answer for all.
with clock as materialized (
    select :now as now
), made as (
    insert into tasuki_run (job_id, job_version, origin, scope_kind, scope_id, lane, exclusive, max_attempts, tries_allowed,
        scheduled_for, created_at, event_id, rerun_of, args, skip_at, expires_at)
    select :job_id, :job_version, :origin, :scope_kind, :scope_id, :lane, :exclusive, :max_attempts, :max_attempts,
        coalesce(:scheduled_for, clock.now), clock.now, :event_id, :rerun_of, g.args, :skip_at, :expires_at
      from rows from (generate_series(1, :count::bigint), unnest(:given::text[])) as g (number, args), clock
    returning id, scheduled_for
), queued as (
    insert into tasuki_due (lane, due_at, run_id, exclusive, skip_at)
    select :lane, scheduled_for, id, :exclusive, case when :skip_at is null or :expires_at < :skip_at then :expires_at else :skip_at end
      from made
)
select string_agg(id::text, ' ' order by id) as ids from made
