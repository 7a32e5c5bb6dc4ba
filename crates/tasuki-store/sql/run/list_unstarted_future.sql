-- run/list_unstarted_future: future runs that a job's schedule created and that have not started. Searched by planned
-- instant, because a job may have a long history but few future runs; `+ 0` keeps the planner from using the index on
-- the job.
select id
  from tasuki_run
 where scheduled_for > :clock
   and job_id + 0 = :job_id
   and origin = 'time'
   and tries = 0
   and state in ('PENDING', 'ORPHANED', 'ASSIGNED')
 order by scheduled_for, id
