-- due/find_next_lane: the next lane with a waiting run.
select lane from tasuki_due where lane > :after order by lane limit 1
