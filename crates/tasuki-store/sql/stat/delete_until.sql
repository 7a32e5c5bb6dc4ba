-- stat/delete_until: retention: delete whole minutes.
delete from tasuki_stat where minute <= :minute
