-- lease/assert_range_moved: check that the previous statement has changed all runs of a lease whose ids are
-- consecutive. If not, the result is not valid JSON, so json() fails and the whole transaction is rolled back.
select json(case when changes() = coalesce((select last_run - first_run + 1 from tasuki_lease where token = :token), 0)
            then 'true' else 'not all of them' end) as moved
