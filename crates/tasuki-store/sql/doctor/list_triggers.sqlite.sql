-- doctor/list_triggers: the existing triggers. They cannot be disabled here.
select name, tbl_name as table_name, 1 as always
  from sqlite_master
 where type = 'trigger'
