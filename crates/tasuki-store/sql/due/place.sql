-- due/place: where a run's due row is, if it waits. Asked by itself: in a delete the same question would lock the run before
-- its due row on MySQL.
select lane,
       coalesce(next_retry_at, scheduled_for) as due_at,
       case when state in ('PENDING', 'ORPHANED', 'RETRY_WAIT') then 1 else 0 end as waits
  from tasuki_run
 where id = :run_id
