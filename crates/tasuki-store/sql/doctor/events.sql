-- doctor/events: events whose runs in this stretch are not all they say they have, or that have runs but are not marked.
-- An event's runs can lie in two stretches, so what comes back is added up before it is believed.
select r.event_id as id,
       count(*) as runs,
       e.runs as said,
       e.processed_at
  from tasuki_run r
  join tasuki_event e on e.id = r.event_id
 where r.id >= :from
   and r.id <= :to
 group by r.event_id, e.runs, e.processed_at
having e.processed_at is null
    or e.runs is null
    or e.runs <> count(*)
