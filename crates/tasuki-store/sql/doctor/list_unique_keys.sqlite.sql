-- doctor/list_unique_keys: the columns of every unique key. A partial index that excludes only nulls counts as unique.
-- The keys of tasuki_run_data are reported as those of tasuki_run.
select case m.name when 'tasuki_run_data' then 'tasuki_run' else m.name end as table_name, il.name as key_name, ii.name as column_name
  from sqlite_master m
  join pragma_index_list(m.name) il
  join pragma_index_info(il.name) ii
 where m.type = 'table'
   and il."unique" = 1
   and (il.partial = 0
        or exists (select 1 from sqlite_master i
                    where i.name = il.name
                      and (i.sql like '%where slot is not null' or i.sql like '%where idempotency_key is not null')))
union all
select case m.name when 'tasuki_run_data' then 'tasuki_run' else m.name end, 'primary key', ti.name
  from sqlite_master m
  join pragma_table_info(m.name) ti
 where m.type = 'table'
   and ti.pk > 0
