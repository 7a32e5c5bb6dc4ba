-- doctor/list_triggers: the existing triggers, and whether they are enabled ALWAYS: only then do they fire in sessions
-- that replicate.
select t.tgname::text as name,
       c.relname::text as table_name,
       case when t.tgenabled = 'A' then 1 else 0 end as always
  from pg_trigger t
  join pg_class c on c.oid = t.tgrelid
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = current_schema()
   and not t.tgisinternal
