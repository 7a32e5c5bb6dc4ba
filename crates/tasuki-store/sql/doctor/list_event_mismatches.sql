-- doctor/list_event_mismatches: events whose runs in this id range differ from the recorded number, or that have runs
-- but are not marked as processed. The runs of one event can be in two id ranges, so the caller adds the numbers before
-- it reports an event.
select r.event_id as id,
       count(*) as runs,
       e.runs as recorded_runs,
       e.processed_at
  from tasuki_run r
  join tasuki_event e on e.id = r.event_id
 where r.id >= :from
   and r.id <= :to
 group by r.event_id, e.runs, e.processed_at
having e.processed_at is null
    or e.runs is null
    or e.runs <> count(*)
