-- doctor/list_triggers: the existing triggers. They cannot be disabled here.
select cast(trigger_name as char) as name,
       cast(event_object_table as char) as table_name,
       1 as always
  from information_schema.triggers
 where trigger_schema = database()
