-- due/list_lane_due_times: the database's clock, and when the first run of each of several lanes is due: after an instant
-- and within the horizon. A file of its own because of the list parameter. The lane is converted to the collation of
-- the column, so that the index can be used.
select :now as clock,
       x.nth - 1 as lane_index,
       (select d.due_at
          from tasuki_due d
         where d.lane = convert(x.lane using utf8mb4) collate utf8mb4_bin
           and d.due_at >= x.after_at
           and d.due_at <= :now + :horizon
         order by d.due_at
         limit 1) as due_at
  from json_table(:positions, '$[*]' columns (nth for ordinality, lane varchar(191) path '$[0]', after_at bigint path '$[1]')) x
