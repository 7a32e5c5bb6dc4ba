-- doctor/tally: how many runs of a stretch are carried, how many wait and are in due, and how many came from events. What
-- the small tables count must be the same; only where it is not are they searched.
select count(*) as runs,
       count(case when r.state in ('ASSIGNED', 'RUNNING') then 1 end) as carried,
       count(case when r.state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')
                   and exists (select 1 from tasuki_due d
                                where d.lane = r.lane
                                  and d.due_at = coalesce(r.next_retry_at, r.scheduled_for)
                                  and d.run_id = r.id)
                  then 1 end) as waiting,
       count(case when r.event_id is not null
                   and exists (select 1 from tasuki_event e where e.id = r.event_id)
                  then 1 end) as of_events
  from tasuki_run r
 where r.id >= :from
   and r.id <= :to
