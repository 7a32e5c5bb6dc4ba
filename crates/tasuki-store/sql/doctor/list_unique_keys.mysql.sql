-- doctor/list_unique_keys: the columns of every unique key.
select cast(table_name as char) as table_name,
       cast(index_name as char) as key_name,
       cast(column_name as char) as column_name
  from information_schema.statistics
 where table_schema = database()
   and non_unique = 0
