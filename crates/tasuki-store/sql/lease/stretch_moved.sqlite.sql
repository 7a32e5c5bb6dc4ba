-- lease/stretch_moved: whether the statement before has moved all that the lease is for, where their ids follow one another. If
-- not, this is no JSON, which ends the transaction: nothing of it has happened.
select json(case when changes() = coalesce((select last_run - first_run + 1 from tasuki_lease where token = :token), 0)
            then 'true' else 'not all of them' end) as moved
