-- due/lane: the next lane in which something waits.
select lane from tasuki_due where lane > :after order by lane limit 1
