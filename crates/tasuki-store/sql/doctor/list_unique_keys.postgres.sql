-- doctor/list_unique_keys: the columns of every unique key. A partial index that excludes only nulls counts as unique.
select c.relname::text as table_name, x.relname::text as key_name, a.attname::text as column_name
  from pg_index i
  join pg_class c on c.oid = i.indrelid
  join pg_namespace n on n.oid = c.relnamespace
  join pg_class x on x.oid = i.indexrelid
  join pg_attribute a on a.attrelid = x.oid
 where n.nspname = current_schema()
   and i.indisunique
   and i.indisvalid
   and (i.indpred is null
        or pg_get_expr(i.indpred, i.indrelid) in ('(slot IS NOT NULL)', '(idempotency_key IS NOT NULL)'))
