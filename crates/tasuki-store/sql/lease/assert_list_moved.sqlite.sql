-- lease/assert_list_moved: check that the previous statement has changed all runs of a lease whose ids are not
-- consecutive. If not, the result is not valid JSON, so json() fails and the whole transaction is rolled back.
select json(case when changes() = coalesce((select json_array_length(run_ids)
                                              from tasuki_lease
                                             where token = :token
                                               and first_run is null), 0)
            then 'true' else 'not all of them' end) as moved
