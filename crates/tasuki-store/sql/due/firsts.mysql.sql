-- due/firsts: what time it is, and when the first of each of several lanes is due, from an instant on and so far ahead.
-- Here because of the list. Compared as the column is, so that the index can be used.
select :now as clock,
       x.place - 1 as place,
       (select d.due_at
          from tasuki_due d
         where d.lane = convert(x.lane using utf8mb4) collate utf8mb4_bin
           and d.due_at >= x.after_at
           and d.due_at <= :now + :ahead
         order by d.due_at
         limit 1) as due_at
  from json_table(:places, '$[*]' columns (place for ordinality, lane varchar(191) path '$[0]', after_at bigint path '$[1]')) x
