-- due/delete_leased: delete the due rows of a lease's runs. The transaction that deletes the rows has the runs to
-- itself. Not a row that also stands for runs outside the lease.
delete from tasuki_due
 where lane = (select :lane)
   and due_at >= (select :after_at)
   and (due_at, run_id) <= (select last_due_at, coalesce(last_run, json_extract(run_ids, '$[#-1]')) from tasuki_lease where token = :token)
   and (run_id >= (select first_run from tasuki_lease where token = :token)
        and run_id + extra_runs <= (select last_run from tasuki_lease where token = :token)
        or run_id in (select x.value
                        from tasuki_lease l
                       cross join json_each(l.run_ids) x
                       where l.token = :token
                         and l.first_run is null)
        and (extra_runs = 0
             or run_id + extra_runs in (select x.value
                                    from tasuki_lease l
                                   cross join json_each(l.run_ids) x
                                   where l.token = :token
                                     and l.first_run is null)))
