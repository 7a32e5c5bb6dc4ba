-- setting/increment_version: increment the version of the settings. Guard: it is still the one that was read, so of two
-- concurrent changes one loses.
update tasuki_setting_version
   set version = version + 1
 where id = 1
   and version = :expected
