-- run/insert_uniform: T0 in one statement for runs that differ only in their arguments and cannot exist already, as
-- most tasks that are submitted together. One list parameter instead of seventeen, and one result row for all. Up to
-- :range_len of them share a due row, and 64 of them a list entry, if no other transaction has drawn an id in between.
-- Many ids are allocated before (run/allocate_ids), few at the beginning of this statement.
with clock as materialized (
    select :now as now
), allocated as materialized (
    select case when :first::bigint is null
                then array(select nextval(s.name) from generate_series(1, :count::bigint))
                else array(select generate_series(:first::bigint, :first::bigint + :count::bigint - 1)) end as ids
      from (select pg_get_serial_sequence('tasuki_run', 'id')::regclass as name offset 0) s
), span as materialized (
    select ids[1] as first, ids[:count::bigint] as last, ids[:count::bigint] - ids[1] + 1 = :count::bigint as in_a_row,
           coalesce(:scheduled_for, clock.now) as due_at
      from allocated, clock
), inserted as (
    insert into tasuki_run (id, job_id, job_version, origin, scope_kind, scope_id, lane, exclusive, max_attempts, tries_allowed,
        scheduled_for, created_at, event_id, rerun_of, args, skip_at, expires_at, extra_runs)
    select g.id, :job_id, :job_version, :origin, :scope_kind, :scope_id, :lane, :exclusive, :max_attempts, :max_attempts,
        span.due_at, clock.now, :event_id, :rerun_of, g.args, :skip_at, :expires_at,
        case when not span.in_a_row then 0 when (g.id - span.first) % 64 = 0 then least(span.last - g.id, 63) end
      from allocated, span, clock, rows from (unnest(allocated.ids), unnest(:args_list::text[])) as g (id, args)
), queued as (
    insert into tasuki_due (lane, due_at, run_id, exclusive, skip_at, extra_runs)
    select :lane, due_at, id, :exclusive, case when :skip_at is null or :expires_at < :skip_at then :expires_at else :skip_at end,
           least(last - id, :range_len::bigint - 1)
      from span, generate_series(first, last, :range_len::bigint) as id
     where in_a_row
     union all
    select :lane, due_at, id, :exclusive, case when :skip_at is null or :expires_at < :skip_at then :expires_at else :skip_at end, 0
      from span, allocated, unnest(ids) as id
     where not in_a_row
)
select first, last, case when not in_a_row then (select array_to_string(ids, ' ') from allocated) end as ids from span
