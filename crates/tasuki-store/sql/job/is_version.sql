-- job/is_version: whether a job still has the version that was read.
select id from tasuki_job where id = :id and version = :expected and deleted_at is null
