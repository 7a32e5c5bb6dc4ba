-- job/lock: one definition, held still while it is changed; and the time.
select id, version, deleted_at, :now as clock from tasuki_job where id = :id for update
