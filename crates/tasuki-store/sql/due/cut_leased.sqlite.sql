-- due/cut_leased: the first of a stretch are taken, up to the last of the list, and the others wait on. A
-- lease that was there before cuts nothing for good: what it is for does not wait, and the check that follows ends it all.
update tasuki_due
   set run_id = (select json_extract(l.run_ids, '$[#-1]') + 1 from tasuki_lease l where l.token = :token),
       more = run_id + more - 1 - (select json_extract(l.run_ids, '$[#-1]') from tasuki_lease l where l.token = :token)
 where lane = :lane
   and due_at = (select r.scheduled_for
                   from tasuki_lease l
                   join tasuki_run r on r.id = json_extract(l.run_ids, '$[#-1]')
                  where l.token = :token)
   and run_id in (select x.value from tasuki_lease l cross join json_each(l.run_ids) x where l.token = :token)
   and run_id + more > (select json_extract(l.run_ids, '$[#-1]') from tasuki_lease l where l.token = :token)
