-- doctor/clock: the database's clock.
select :now as clock
