-- leader/clock: what time it is.
select :now as clock
