-- due/assert_all_taken: check that none of the runs of a lease is left in the lane. If not, the result is not valid
-- JSON, so json() fails and the whole transaction is rolled back.
select json(case when exists (
           select 1
             from tasuki_due
            where lane = (select :lane)
              and due_at >= (select :after_at)
              and (due_at, run_id) <= (select last_due_at, coalesce(last_run, json_extract(run_ids, '$[#-1]')) from tasuki_lease where token = :token)
              and (run_id >= (select first_run from tasuki_lease where token = :token)
                   and run_id <= (select last_run from tasuki_lease where token = :token)
                   or run_id in (select x.value
                                   from tasuki_lease l
                                  cross join json_each(l.run_ids) x
                                  where l.token = :token
                                    and l.first_run is null)))
       then 'some are left' else 'true' end) as taken
