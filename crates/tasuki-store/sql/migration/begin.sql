-- migration/begin: noted before it is tried; where schema changes do not roll back, one that broke off stays visible.
insert into tasuki_migration (version, name, checksum, applied_at)
values (:version, :name, :checksum, null)
