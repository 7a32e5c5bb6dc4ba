-- due/find_first_lane: the first lane with a waiting run.
select lane from tasuki_due order by lane limit 1
