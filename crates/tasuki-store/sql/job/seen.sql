-- job/seen: whether a definition is still the one that was read.
select id from tasuki_job where id = :id and version = :seen and deleted_at is null
