-- leader/lock: waits for every write of the leader before.
select pg_advisory_xact_lock(8391473622816)
