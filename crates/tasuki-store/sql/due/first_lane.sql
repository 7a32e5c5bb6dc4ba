-- due/first_lane: the first lane in which something waits.
select lane from tasuki_due order by lane limit 1
