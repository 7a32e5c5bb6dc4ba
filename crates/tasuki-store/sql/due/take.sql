-- due/take: whoever deletes the row has the run to itself.
delete from tasuki_due
 where lane = (select lane from tasuki_run where id = :run_id)
   and due_at = (select coalesce(next_retry_at, scheduled_for) from tasuki_run where id = :run_id)
   and run_id = :run_id
