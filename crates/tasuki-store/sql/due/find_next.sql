-- due/find_next: when the next run of a lane is due.
select due_at
  from tasuki_due
 where lane = :lane
   and due_at > :after
   and due_at <= :until
 order by due_at
 limit 1
