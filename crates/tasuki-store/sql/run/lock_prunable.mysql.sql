-- run/lock_prunable: retention: lock those of these runs that ended long ago, because a manual retry may be under way.
-- The list is a JSON text, because there are no array parameters.
select r.id
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
 where r.finished_at < :now - :min_age
 order by r.id
   for update
