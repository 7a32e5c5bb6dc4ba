-- doctor/attempts_order: an appended attempt that was taken before the one before it had ended.
select run_id as id,
       1 as attempts_overlap
  from (select run_id,
               assigned_at,
               lag(finished_at) over (partition by run_id order by attempt_no) as ended_before
          from tasuki_attempt
         where run_id >= :from
           and run_id <= :to) x
 where assigned_at < ended_before
 order by run_id
 limit :most
