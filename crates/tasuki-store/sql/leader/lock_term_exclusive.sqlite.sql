-- leader/lock_term_exclusive: nothing to lock: SQLite has one writer at a time.
select 1
