-- job/lock_version: whether a job still has the version that was read. It keeps it until this transaction ends, because
-- SQLite has one writer at a time.
select id from tasuki_job where id = :id and version = :expected and deleted_at is null
