-- leader/lock: shared with this leader's other writes, exclusive for a mint. FOR SHARE would starve the mint.
select pg_advisory_xact_lock_shared(8391473622816)
