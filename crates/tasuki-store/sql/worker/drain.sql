-- worker/drain: drain a worker: it gets no new work.
update tasuki_worker set draining_at = :now where id = :id and draining_at is null and gone_at is null
