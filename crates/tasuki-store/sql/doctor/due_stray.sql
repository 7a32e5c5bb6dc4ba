-- doctor/due_stray: rows in due whose run does not wait, or waits elsewhere. Searched only when the counts differ.
select d.run_id as id,
       case when r.state in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'SKIPPED', 'EXPIRED')
            then 1 else 0 end as ended_but_due,
       case when r.id is null
              or r.state not in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'SKIPPED', 'EXPIRED')
            then 1 else 0 end as wrongly_due
  from tasuki_due d
  left join tasuki_run r on r.id = d.run_id
 where r.id is null
    or r.state not in ('PENDING', 'ORPHANED', 'RETRY_WAIT')
    or r.lane <> d.lane
    or coalesce(r.next_retry_at, r.scheduled_for) <> d.due_at
 limit :most
