-- leader/lock_term_exclusive: wait for every running write of the previous leader.
select pg_advisory_xact_lock(8391473622816)
