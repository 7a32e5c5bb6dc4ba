-- job/lock_by_name: lock the job with this name, if there is one; also returns the database's clock.
select id, version, deleted_at, :now as clock from tasuki_job where name = :name for update
