-- lease/all_moved: the same where they do not.
select json(case when changes() = coalesce((select json_array_length(run_ids)
                                              from tasuki_lease
                                             where token = :token
                                               and first_run is null), 0)
            then 'true' else 'not all of them' end) as moved
