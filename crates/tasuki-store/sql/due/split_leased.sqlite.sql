-- due/split_leased: claim the first runs of an id range, up to the last run of the lease; the others continue to wait.
-- Where the ids of the lease are consecutive, the last run is the one with the highest id.
update tasuki_due
   set run_id = (select coalesce(last_run, json_extract(run_ids, '$[#-1]')) + 1 from tasuki_lease where token = :token),
       extra_runs = run_id + extra_runs - 1
              - (select coalesce(last_run, json_extract(run_ids, '$[#-1]')) from tasuki_lease where token = :token)
 where lane = (select :lane)
   and due_at >= (select last_due_at from tasuki_lease where token = :token)
   and (due_at, run_id) <= (select last_due_at, coalesce(last_run, json_extract(run_ids, '$[#-1]')) from tasuki_lease where token = :token)
   and run_id + extra_runs > (select coalesce(last_run, json_extract(run_ids, '$[#-1]')) from tasuki_lease where token = :token)
   and (run_id >= (select first_run from tasuki_lease where token = :token)
        or run_id in (select x.value
                        from tasuki_lease l
                       cross join json_each(l.run_ids) x
                       where l.token = :token
                         and l.first_run is null))
