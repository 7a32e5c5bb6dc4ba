-- run/lock_orphanable: T7: lock an assigned run that was not started in time, or whose worker must not start it.
select *
  from tasuki_run
 where id = :run_id
   and state = 'ASSIGNED'
   and lease_token = :token
   and (start_by < :now
        or exists (select 1 from tasuki_worker w
                    where w.id = tasuki_run.worker_id
                      and (w.detached_at is not null or w.dead_at is not null or w.gone_at is not null)))
   for update
