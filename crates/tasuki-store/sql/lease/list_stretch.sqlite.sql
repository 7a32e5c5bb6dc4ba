-- lease/list_stretch: what a lease is for, told of it as of any other, where it was opened without a look at its runs.
update tasuki_lease
   set (job_id, run_ids) = (
           select case when min(b.job_id) = max(b.job_id) then min(b.job_id) end, json_group_array(b.id)
             from tasuki_run_birth b
            where b.id >= tasuki_lease.first_run
              and b.id <= tasuki_lease.last_run)
 where token = :token
   and run_ids = '[]'
