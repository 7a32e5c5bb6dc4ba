-- due/take_many: the rows that were found, between the first and the last of them: the lane is walked once.
delete from tasuki_due
 where lane = :lane
   and due_at >= :first
   and due_at <= :last
   and run_id in (select value from json_each(:heads))
