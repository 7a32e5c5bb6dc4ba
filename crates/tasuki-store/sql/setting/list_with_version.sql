-- setting/list_with_version: the version and all settings. One statement, so that they belong together.
select v.version, s.name, s.value
  from tasuki_setting_version v
  left join tasuki_setting s on v.id = 1
 where v.id = 1
 order by s.name
