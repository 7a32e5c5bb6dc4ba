-- lease/was_deleted: whether the previous statement has deleted the lease.
select changes() as was_deleted
