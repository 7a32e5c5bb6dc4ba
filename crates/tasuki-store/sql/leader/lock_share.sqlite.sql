-- leader/lock: one writer at a time.
select 1
