-- lease/list_run_ids: the run ids of all leases; some of these runs may have ended.
select run_ids from tasuki_lease order by token limit :limit
