-- doctor/check_term_order: terms that began before the previous term.
select epoch as id,
       1 as began_earlier
  from (select epoch,
               began_at,
               lag(began_at) over (order by epoch) as previous_began_at
          from tasuki_term_history) x
 where began_at < previous_began_at
 order by epoch
 limit :limit
