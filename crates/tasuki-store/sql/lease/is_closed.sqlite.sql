-- lease/is_closed: whether the statement before has closed the lease.
select changes() as closed
