-- job/share: whether a definition is still the one that was read, and stays so until this transaction ends. Whoever
-- changes it waits; others who only need it unchanged do not.
select id from tasuki_job where id = :id and version = :seen and deleted_at is null for share
