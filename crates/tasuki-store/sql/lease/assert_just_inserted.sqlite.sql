-- lease/assert_just_inserted: check that the lease, if it exists, was inserted by the previous statement. A lease from
-- an earlier attempt of the same claim does not show what may be claimed now. If not, the result is not valid JSON, so
-- json() fails and the whole transaction is rolled back.
select json(case when changes() = (select count(*) from tasuki_lease where token = :token)
            then 'true' else 'it was there before' end) as opened
