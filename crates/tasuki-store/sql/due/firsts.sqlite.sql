-- due/firsts: what time it is, and when the first of each of several lanes is due, from an instant on and so far ahead.
-- Here because of the list.
select :now as clock,
       x.key as place,
       (select d.due_at
          from tasuki_due d
         where d.lane = json_extract(x.value, '$[0]')
           and d.due_at >= json_extract(x.value, '$[1]')
           and d.due_at <= :now + :ahead
         order by d.due_at
         limit 1) as due_at
  from json_each(:places) x
