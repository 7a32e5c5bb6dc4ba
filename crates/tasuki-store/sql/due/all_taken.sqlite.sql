-- due/all_taken: whether none of what a lease is for is left in the lane. If not, this is no JSON, which ends the transaction:
-- nothing of it has happened.
select json(case when exists (
           select 1
             from tasuki_due
            where lane = (select :lane)
              and due_at >= (select :after_at)
              and (due_at, run_id) <= (select last_due, coalesce(last_run, json_extract(run_ids, '$[#-1]')) from tasuki_lease where token = :token)
              and (run_id >= (select first_run from tasuki_lease where token = :token)
                   and run_id <= (select last_run from tasuki_lease where token = :token)
                   or run_id in (select x.value
                                   from tasuki_lease l
                                  cross join json_each(l.run_ids) x
                                  where l.token = :token
                                    and l.first_run is null)))
       then 'some are left' else 'true' end) as taken
