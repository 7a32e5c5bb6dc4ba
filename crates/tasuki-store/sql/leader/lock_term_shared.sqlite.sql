-- leader/lock_term_shared: nothing to lock: SQLite has one writer at a time.
select 1
