-- doctor/find_clock: the database's clock.
select :now as clock
