-- due/take_leased: whoever deletes the rows has the runs to itself. Not the row that stands for more than these. Between the first and the last of the list: the lane is
-- walked once. And only if the lease was opened just now: one of a claim that is sent again says nothing of what may be taken.
delete from tasuki_due
 where lane = :lane
   and due_at >= (select coalesce(r.next_retry_at, r.scheduled_for)
                    from tasuki_lease l
                    join tasuki_run r on r.id = json_extract(l.run_ids, '$[0]')
                   where l.token = :token)
   and due_at <= (select coalesce(r.next_retry_at, r.scheduled_for)
                    from tasuki_lease l
                    join tasuki_run r on r.id = json_extract(l.run_ids, '$[#-1]')
                   where l.token = :token)
   and run_id in (select x.value from tasuki_lease l cross join json_each(l.run_ids) x where l.token = :token)
   and (more = 0
        or run_id + more in (select x.value from tasuki_lease l cross join json_each(l.run_ids) x where l.token = :token))
   and changes() = 1
