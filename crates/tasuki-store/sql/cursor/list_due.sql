-- cursor/list_due: cursors whose next fire is near. The cost depends on the number of these cursors, not on the number
-- of jobs.
select c.job_id, c.scope_kind, c.scope_id, c.next_fire,
       (select j.version from tasuki_job j where j.id = c.job_id) as job_version
  from tasuki_cursor c
 where c.next_fire <= :until
 order by c.next_fire
 limit :limit
