-- cursor/due: whose next fire is near; the cost follows the work, not the number of definitions.
select c.job_id, c.scope_kind, c.scope_id, c.next_fire,
       (select j.version from tasuki_job j where j.id = c.job_id) as job_version
  from tasuki_cursor c
 where c.next_fire <= :until
 order by c.next_fire
 limit :most
