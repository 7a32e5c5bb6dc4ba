-- job/share: whether a definition is still the one that was read. It stays so: there is one writer.
select id from tasuki_job where id = :id and version = :seen and deleted_at is null
