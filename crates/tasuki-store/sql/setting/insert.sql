-- setting/insert: store a setting that had its default value until now.
insert into tasuki_setting (name, value, changed_at, changed_by)
values (:name, :value, :now, :changed_by)
