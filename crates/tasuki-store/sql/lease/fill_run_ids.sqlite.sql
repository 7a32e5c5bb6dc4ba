-- lease/fill_run_ids: write the list of run ids and the job of a lease that was created from an id range, so that it
-- looks like any other lease.
update tasuki_lease
   set (job_id, run_ids) = (
           select case when min(b.job_id) = max(b.job_id) then min(b.job_id) end, json_group_array(b.id)
             from tasuki_run_data b
            where b.id >= tasuki_lease.first_run
              and b.id <= tasuki_lease.last_run)
 where token = :token
   and run_ids = '[]'
