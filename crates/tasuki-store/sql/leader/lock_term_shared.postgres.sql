-- leader/lock_term_shared: lock the term for a write of the leader. Shared between the writes of one leader, exclusive
-- for a change of leadership. An advisory lock, because with FOR SHARE new writes would keep a change of leadership
-- waiting forever.
select pg_advisory_xact_lock_shared(8391473622816)
