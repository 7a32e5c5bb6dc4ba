-- run/draw: ids for so many runs, and the first of them if they follow one another: null where somebody drew one in between.
-- Who draws many here does so alone, until this statement ends; who inserts while it draws is not kept from it. Nobody
-- waits for the disk: the log has this before it has the runs that get these ids, and ids of runs that are not there are nobody's.
select case when ids[:count::bigint] - ids[1] + 1 = :count::bigint then ids[1] end as first
  from (select 1::bigint as one, pg_advisory_xact_lock(8391473622818), set_config('synchronous_commit', 'off', true)
        offset 0) alone,
       (select pg_get_serial_sequence('tasuki_run', 'id')::regclass as name offset 0) s,
       lateral (select array(select nextval(s.name) from generate_series(alone.one, :count::bigint)) as ids offset 0) drawn
