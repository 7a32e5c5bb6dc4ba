-- setting/add: a value that was the default until now.
insert into tasuki_setting (name, value, changed_at, changed_by)
values (:name, :value, :now, :changed_by)
