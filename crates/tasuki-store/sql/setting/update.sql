-- setting/update: change a stored setting. The transaction that incremented the version has the table to itself.
update tasuki_setting
   set value = :value,
       changed_at = :now,
       changed_by = :changed_by
 where name = :name
