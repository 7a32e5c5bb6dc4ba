-- due/find_position: where the due row of a run is, if it waits. A statement of its own, because as a subquery of the
-- delete it would lock the run before its due row on MariaDB.
select lane,
       coalesce(next_retry_at, scheduled_for) as due_at,
       case when state in ('PENDING', 'ORPHANED', 'RETRY_WAIT') then 1 else 0 end as is_waiting
  from tasuki_run
 where id = :run_id
