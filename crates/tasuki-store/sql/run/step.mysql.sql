-- run/step: how far apart the ids are that this server hands out.
select cast(@@session.auto_increment_increment as signed) as step
