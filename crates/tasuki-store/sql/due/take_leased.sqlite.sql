-- due/take_leased: whoever deletes the rows has the runs to itself. Not the row that stands for more than these.
delete from tasuki_due
 where lane = (select :lane)
   and due_at >= (select :after_at)
   and (due_at, run_id) <= (select last_due, coalesce(last_run, json_extract(run_ids, '$[#-1]')) from tasuki_lease where token = :token)
   and (run_id >= (select first_run from tasuki_lease where token = :token)
        and run_id + more <= (select last_run from tasuki_lease where token = :token)
        or run_id in (select x.value
                        from tasuki_lease l
                       cross join json_each(l.run_ids) x
                       where l.token = :token
                         and l.first_run is null)
        and (more = 0
             or run_id + more in (select x.value
                                    from tasuki_lease l
                                   cross join json_each(l.run_ids) x
                                   where l.token = :token
                                     and l.first_run is null)))
