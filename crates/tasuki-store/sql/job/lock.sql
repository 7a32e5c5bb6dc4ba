-- job/lock: lock one job while it is changed; also returns the database's clock.
select id, version, deleted_at, :now as clock from tasuki_job where id = :id for update
