-- run/all_ended: whether the statement before has moved so many. If not, this is no JSON, which ends the transaction: nothing
-- of it has happened.
select json(case when changes() = :count then 'true' else 'not all of them' end) as moved
