-- due/list_lane_due_times: the database's clock, and when the first run of each of several lanes is due: after a position
-- (instant, run) and within the horizon. A file of its own because of the list parameters, and because only PostgreSQL
-- compares the whole position and not only the instant, as its claims do.
with clock as materialized (
    select :now as now
)
select clock.now as clock,
       g.nth - 1 as lane_index,
       (select d.due_at
          from tasuki_due d
         where d.lane = g.lane collate "C"
           and d.due_at <= clock.now + :horizon
           and (d.due_at, d.run_id) > (g.after_at, g.after_run)
         order by d.due_at, d.run_id
         limit 1) as due_at
  from unnest(:lanes::text[], :after_ats::bigint[], :after_runs::bigint[]) with ordinality
           as g (lane, after_at, after_run, nth), clock
