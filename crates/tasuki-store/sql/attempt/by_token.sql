-- attempt/by_token: what became of an attempt whose worker had no answer. By the run, which has few; a lease may have had many.
select run_id, attempt_no, outcome from tasuki_attempt where token = :token and run_id = :run_id
 order by attempt_no desc
 limit 1
