-- cursor/due: whose next fire is near; the cost follows the work, not the number of definitions.
select job_id, scope_kind, scope_id, next_fire
  from tasuki_cursor
 where next_fire <= :until
 order by next_fire
 limit :most
