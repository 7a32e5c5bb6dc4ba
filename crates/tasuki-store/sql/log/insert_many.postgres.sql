-- log/insert_many: create the logs of several attempts with their first lines. Guard: the attempt exists and has no log
-- yet.
with logs as materialized (
    -- If an attempt occurs twice, the first one counts.
    select distinct on (run_id, attempt_no) *
      from unnest(:run_ids::bigint[], :attempts::bigint[], :lines_counts::bigint[], :bytes::bigint[], :bodies::text[])
           with ordinality as g (run_id, attempt_no, lines_count, bytes, body, number)
     order by run_id, attempt_no, number
), created_logs as (
    insert into tasuki_log (run_id, attempt_no, lines_count, bytes)
    select g.run_id, g.attempt_no, g.lines_count, g.bytes
      from logs g
      join tasuki_run r on r.id = g.run_id
     where r.attempt_no >= g.attempt_no
       and g.attempt_no >= 1
    on conflict do nothing
    returning run_id, attempt_no
), added as (
    insert into tasuki_log_chunk (run_id, attempt_no, first_line, last_line, at, body)
    select g.run_id, g.attempt_no, 0, g.lines_count - 1, :now, g.body
      from created_logs
      join logs g on g.run_id = created_logs.run_id and g.attempt_no = created_logs.attempt_no
)
select run_id, attempt_no from created_logs
