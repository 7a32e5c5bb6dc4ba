-- log/open_many: the first lines of several attempts, each of which there was and has no log yet.
with given as materialized (
    -- Of the same attempt the first.
    select distinct on (run_id, attempt_no) *
      from unnest(:run_ids::bigint[], :attempts::bigint[], :lines_counts::bigint[], :bytes::bigint[], :bodies::text[])
           with ordinality as g (run_id, attempt_no, lines_count, bytes, body, number)
     order by run_id, attempt_no, number
), opened as (
    insert into tasuki_log (run_id, attempt_no, lines_count, bytes)
    select g.run_id, g.attempt_no, g.lines_count, g.bytes
      from given g
      join tasuki_run r on r.id = g.run_id
     where r.attempt_no >= g.attempt_no
       and g.attempt_no >= 1
    on conflict do nothing
    returning run_id, attempt_no
), added as (
    insert into tasuki_log_chunk (run_id, attempt_no, first_line, last_line, at, body)
    select g.run_id, g.attempt_no, 0, g.lines_count - 1, :now, g.body
      from opened
      join given g on g.run_id = opened.run_id and g.attempt_no = opened.attempt_no
)
select run_id, attempt_no from opened
