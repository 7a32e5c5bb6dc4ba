-- doctor/check_attempt_order: recorded attempts that were assigned before the previous attempt had ended.
select run_id as id,
       1 as attempts_overlap
  from (select run_id,
               assigned_at,
               lag(finished_at) over (partition by run_id order by attempt_no) as previous_finished_at
          from tasuki_attempt
         where run_id >= :from
           and run_id <= :to) x
 where assigned_at < previous_finished_at
 order by run_id
 limit :limit
