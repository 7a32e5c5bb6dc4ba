-- due/cut_leased: the first of a stretch are taken, up to the last of the lease, and the others wait on. Where ids follow one
-- another that is the highest of them: the one after it was not taken.
update tasuki_due
   set run_id = (select coalesce(last_run, json_extract(run_ids, '$[#-1]')) + 1 from tasuki_lease where token = :token),
       more = run_id + more - 1
              - (select coalesce(last_run, json_extract(run_ids, '$[#-1]')) from tasuki_lease where token = :token)
 where lane = (select :lane)
   and due_at >= (select last_due from tasuki_lease where token = :token)
   and (due_at, run_id) <= (select last_due, coalesce(last_run, json_extract(run_ids, '$[#-1]')) from tasuki_lease where token = :token)
   and run_id + more > (select coalesce(last_run, json_extract(run_ids, '$[#-1]')) from tasuki_lease where token = :token)
   and (run_id >= (select first_run from tasuki_lease where token = :token)
        or run_id in (select x.value
                        from tasuki_lease l
                       cross join json_each(l.run_ids) x
                       where l.token = :token
                         and l.first_run is null))
