-- lease/run_ids: what is carried, and what its lease outlived.
select run_ids from tasuki_lease order by token limit :most
