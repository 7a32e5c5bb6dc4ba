-- run/list_failed: runs that ended without success, latest first.
select '' as lane, failed_at as due_at, id as run_id, 0 as extra_runs
  from tasuki_run
 where failed_at <= :at
   and (failed_at < :at or id < :id)
 order by failed_at desc, id desc
 limit :limit
