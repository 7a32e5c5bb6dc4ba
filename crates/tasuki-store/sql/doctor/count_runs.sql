-- doctor/count_runs: how many runs of this id range are leased, wait, or came from events. The small tables must have
-- the same counts; they are searched only if they do not.
select count(case when state in ('ASSIGNED', 'RUNNING') then 1 end) as leased,
       count(case when state in ('PENDING', 'ORPHANED', 'RETRY_WAIT') then 1 end) as waiting,
       count(event_id) as from_events
  from tasuki_run
 where id >= :from
   and id <= :to
