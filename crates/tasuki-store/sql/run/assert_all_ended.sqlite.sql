-- run/assert_all_ended: check that the previous statement has changed this many runs. If not, the result is not valid
-- JSON, so json() fails and the whole transaction is rolled back.
select json(case when changes() = :count then 'true' else 'not all of them' end) as moved
