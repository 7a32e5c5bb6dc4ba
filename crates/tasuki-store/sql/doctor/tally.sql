-- doctor/tally: how many runs of a stretch are carried, how many wait, and how many came from events. What the small tables
-- count must be the same; only where it is not are they searched.
select count(case when state in ('ASSIGNED', 'RUNNING') then 1 end) as carried,
       count(case when state in ('PENDING', 'ORPHANED', 'RETRY_WAIT') then 1 end) as waiting,
       count(event_id) as of_events
  from tasuki_run
 where id >= :from
   and id <= :to
