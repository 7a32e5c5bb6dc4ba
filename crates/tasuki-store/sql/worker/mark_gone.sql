-- worker/mark_gone: mark a worker as gone after an orderly stop.
update tasuki_worker set gone_at = :now where id = :id and gone_at is null
