-- job/lock_version: whether a job still has the version that was read; it keeps it until this transaction ends. A
-- transaction that changes the job waits; other transactions that only need it unchanged do not.
select id from tasuki_job where id = :id and version = :expected and deleted_at is null for share
