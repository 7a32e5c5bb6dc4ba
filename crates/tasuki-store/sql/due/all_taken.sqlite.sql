-- due/all_taken: whether none of what a lease is for is left in the lane, between the first and the last of the list. If not, this
-- is no JSON, which ends the transaction: nothing of it has happened.
select json(case when exists (
           select 1
             from tasuki_due
            where lane = :lane
              and due_at >= (select coalesce(r.next_retry_at, r.scheduled_for)
                               from tasuki_lease l
                               join tasuki_run r on r.id = json_extract(l.run_ids, '$[0]')
                              where l.token = :token)
              and due_at <= (select coalesce(r.next_retry_at, r.scheduled_for)
                               from tasuki_lease l
                               join tasuki_run r on r.id = json_extract(l.run_ids, '$[#-1]')
                              where l.token = :token)
              and run_id in (select x.value from tasuki_lease l cross join json_each(l.run_ids) x where l.token = :token))
       then 'some are left' else 'true' end) as taken
