-- lease/all_moved: whether the statement before has moved all that the lease is for. If not, this is no JSON, which ends the
-- transaction: nothing of it has happened.
select json(case when changes() = (select coalesce(sum(json_array_length(run_ids)), 0) from tasuki_lease where token = :token)
            then 'true' else 'not all of them' end) as moved
