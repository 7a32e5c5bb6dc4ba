-- doctor/triggers: those that are there. None can be switched off here.
select name, tbl_name as table_name, 1 as always
  from sqlite_master
 where type = 'trigger'
