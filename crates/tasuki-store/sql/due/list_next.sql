-- due/list_next: what waits, from where the last page ended.
-- The stretch first, then its runs, so that no plan begins with the history.
select d.lane as place, d.due_at as sort_at, r.id, r.job_id, r.state, r.origin, r.scope_kind, r.scope_id, r.scheduled_for
  from (select lane, due_at, run_id
          from tasuki_due
         where lane <= :place
           and (lane < :place or due_at < :at or (due_at = :at and run_id < :id))
         order by lane desc, due_at desc, run_id desc
         limit :most) d
  join tasuki_run r on r.id = d.run_id
 order by d.lane desc, d.due_at desc, d.run_id desc
