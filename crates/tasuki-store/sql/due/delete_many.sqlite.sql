-- due/delete_many: delete the due rows that were found, between the first and the last of them, so that the lane is
-- scanned once.
delete from tasuki_due
 where lane = :lane
   and due_at >= :first
   and due_at <= :last
   and run_id in (select value from json_each(:first_ids))
