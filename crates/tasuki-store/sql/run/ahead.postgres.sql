-- run/ahead: what a job's schedule made ahead of time and nobody has started. By planned instant, and `+ 0` so that no
-- planner thinks otherwise: a job's history is long, what lies ahead of now is not.
-- What a schedule makes is always listed by itself.
select id
  from tasuki_run
 where more is not null
   and scheduled_for > :clock
   and job_id + 0 = :job_id
   and origin = 'time'
   and tries = 0
   and state in ('PENDING', 'ORPHANED', 'ASSIGNED')
 order by scheduled_for, id
