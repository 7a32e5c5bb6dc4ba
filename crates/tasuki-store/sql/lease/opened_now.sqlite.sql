-- lease/opened_now: whether the lease, if there is one, was opened by the statement before. One of a claim that is sent again says
-- nothing of what may be taken: this is no JSON then, which ends the transaction.
select json(case when changes() = (select count(*) from tasuki_lease where token = :token)
            then 'true' else 'it was there before' end) as opened
