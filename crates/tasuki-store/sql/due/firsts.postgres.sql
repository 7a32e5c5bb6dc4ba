-- due/firsts: what time it is, and when the first of each of several lanes is due, behind a place and so far ahead.
-- Here because of the list, and because only PostgreSQL looks by place and not only by instant: others claim so, too.
with clock as materialized (
    select :now as now
)
select clock.now as clock,
       g.place - 1 as place,
       (select d.due_at
          from tasuki_due d
         where d.lane = g.lane collate "C"
           and d.due_at <= clock.now + :ahead
           and (d.due_at, d.run_id) > (g.after_at, g.after_run)
         order by d.due_at, d.run_id
         limit 1) as due_at
  from unnest(:lanes::text[], :after_ats::bigint[], :after_runs::bigint[]) with ordinality
           as g (lane, after_at, after_run, place), clock
