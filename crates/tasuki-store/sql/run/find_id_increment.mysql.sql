-- run/find_id_increment: the difference between two ids that this server hands out.
select cast(@@session.auto_increment_increment as signed) as increment
