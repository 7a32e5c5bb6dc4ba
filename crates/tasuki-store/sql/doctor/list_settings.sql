-- doctor/list_settings: all settings that differ from their default.
select name, value
  from tasuki_setting
 order by name
