-- setting/raise: only from the version that was read; of two who change at once, one learns that it lost.
update tasuki_setting_version
   set version = version + 1
 where id = 1
   and version = :seen
