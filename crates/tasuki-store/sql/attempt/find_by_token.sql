-- attempt/find_by_token: how an attempt ended, for a worker that got no response to its report. Searched by run,
-- because a run has few attempts and a lease may have had many runs.
select run_id, attempt_no, outcome from tasuki_attempt where token = :token and run_id = :run_id
 order by attempt_no desc
 limit 1
