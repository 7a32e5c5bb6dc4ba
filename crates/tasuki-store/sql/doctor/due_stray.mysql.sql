-- doctor/due_stray: rows in due of whose runs one does not wait, or waits elsewhere. Searched only when the counts differ. A
-- row that stands for several is told by the first of them. Each run by its key: a range that depends on the row is none that an
-- index is used for here.
select *
  from (select d.run_id as id,
               max(case when r.state in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'SKIPPED', 'EXPIRED') then 1 else 0 end)
                   as ended_but_due,
               max(case when r.state in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'SKIPPED', 'EXPIRED') then 0
                        when r.state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')
                             and r.lane = d.lane
                             and coalesce(r.next_retry_at, r.scheduled_for) = d.due_at then 0
                        else 1 end) as wrongly_due
          from tasuki_due d
          straight_join json_table(:places, '$[*]' columns (place bigint path '$')) n on n.place <= d.more
          left join tasuki_run r on r.id = d.run_id + n.place
         group by d.lane, d.due_at, d.run_id) x
 where ended_but_due + wrongly_due > 0
 limit :most
