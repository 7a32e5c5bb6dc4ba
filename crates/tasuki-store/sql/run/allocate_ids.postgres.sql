-- run/allocate_ids: allocate run ids, and return the first of them if they are consecutive: null if another transaction
-- has drawn an id in between. The advisory lock serves callers that allocate many ids one after the other; a single
-- insert does not take it. The commit need not wait for the disk: the write-ahead log contains this before it contains
-- the runs with these ids, and lost ids without runs do no harm.
select case when ids[:count::bigint] - ids[1] + 1 = :count::bigint then ids[1] end as first
  from (select 1::bigint as one, pg_advisory_xact_lock(8391473622818), set_config('synchronous_commit', 'off', true)
        offset 0) id_lock,
       (select pg_get_serial_sequence('tasuki_run', 'id')::regclass as name offset 0) s,
       lateral (select array(select nextval(s.name) from generate_series(id_lock.one, :count::bigint)) as ids offset 0) allocated
