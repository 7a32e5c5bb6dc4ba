-- job/by_name: one definition, by what people call it.
select * from tasuki_job where name = :name
