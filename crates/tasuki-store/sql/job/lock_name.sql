-- job/lock_name: the definition that has this name, if one has; and the time.
select id, version, deleted_at, :now as clock from tasuki_job where name = :name for update
