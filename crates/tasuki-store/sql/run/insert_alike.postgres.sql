-- run/insert_alike: T0 in one statement for runs that differ in nothing but what they are given, and of which none can be
-- there already: what most tasks are that are submitted together. One list instead of seventeen, and one answer for all.
-- So many of them wait in one row, and are listed by one entry of an index, if nobody else has drawn an id in between: where there are many
-- they were drawn before (run/draw), and else before all else, at one go.
with clock as materialized (
    select :now as now
), drawn as materialized (
    select case when :first::bigint is null
                then array(select nextval(s.name) from generate_series(1, :count::bigint))
                else array(select generate_series(:first::bigint, :first::bigint + :count::bigint - 1)) end as ids
      from (select pg_get_serial_sequence('tasuki_run', 'id')::regclass as name offset 0) s
), span as materialized (
    select ids[1] as first, ids[:count::bigint] as last, ids[:count::bigint] - ids[1] + 1 = :count::bigint as in_a_row,
           coalesce(:scheduled_for, clock.now) as due_at
      from drawn, clock
), made as (
    insert into tasuki_run (id, job_id, job_version, origin, scope_kind, scope_id, lane, exclusive, max_attempts, tries_allowed,
        scheduled_for, created_at, event_id, rerun_of, args, skip_at, expires_at, more)
    select g.id, :job_id, :job_version, :origin, :scope_kind, :scope_id, :lane, :exclusive, :max_attempts, :max_attempts,
        span.due_at, clock.now, :event_id, :rerun_of, g.args, :skip_at, :expires_at,
        case when not span.in_a_row then 0 when (g.id - span.first) % 64 = 0 then least(span.last - g.id, 63) end
      from drawn, span, clock, rows from (unnest(drawn.ids), unnest(:given::text[])) as g (id, args)
), queued as (
    insert into tasuki_due (lane, due_at, run_id, exclusive, skip_at, more)
    select :lane, due_at, id, :exclusive, case when :skip_at is null or :expires_at < :skip_at then :expires_at else :skip_at end,
           least(last - id, :each::bigint - 1)
      from span, generate_series(first, last, :each::bigint) as id
     where in_a_row
     union all
    select :lane, due_at, id, :exclusive, case when :skip_at is null or :expires_at < :skip_at then :expires_at else :skip_at end, 0
      from span, drawn, unnest(ids) as id
     where not in_a_row
)
select first, last, case when not in_a_row then (select array_to_string(ids, ' ') from drawn) end as ids from span
