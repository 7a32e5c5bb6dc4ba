-- stat/delete: retention, whole minutes at a time.
delete from tasuki_stat where minute <= :minute
