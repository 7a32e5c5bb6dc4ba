-- worker/gone: it left in order.
update tasuki_worker set gone_at = :now where id = :id and gone_at is null
