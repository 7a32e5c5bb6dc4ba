-- due/list_lane_due_times: the database's clock, and when the first run of each of several lanes is due: after an instant
-- and within the horizon. A file of its own because of the list parameter.
select :now as clock,
       x.key as lane_index,
       (select d.due_at
          from tasuki_due d
         where d.lane = json_extract(x.value, '$[0]')
           and d.due_at >= json_extract(x.value, '$[1]')
           and d.due_at <= :now + :horizon
         order by d.due_at
         limit 1) as due_at
  from json_each(:positions) x
