-- setting/change: a value that stands there already. Whoever raised the version has the table to itself.
update tasuki_setting
   set value = :value,
       changed_at = :now,
       changed_by = :changed_by
 where name = :name
