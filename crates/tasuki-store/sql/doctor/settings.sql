-- doctor/settings: what has been set.
select name, value
  from tasuki_setting
 order by name
