-- doctor/check_list_entries: runs of this id range that no list shows: the run with the list entry for them is missing,
-- or its entry does not include them.
select r.id, 1 as not_listed
  from tasuki_run r
 where r.id >= :from
   and r.id <= :to
   and r.extra_runs is null
   and (select count(*)
          from tasuki_run h
         where h.extra_runs is not null
           and h.id < r.id
           and h.id > r.id - 64
           and h.id + h.extra_runs >= r.id
           and h.job_id = r.job_id
           and h.scheduled_for = r.scheduled_for) <> 1
 order by r.id
 limit :limit
