-- run/lock_old: which of these have ended long ago, held still: a retry by hand may be on its way. A list is a JSON text here.
select r.id
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
 where r.finished_at < :now - :age
 order by r.id
   for update
