-- run/find_by_key: the run that already has the slot or the idempotency key. Two queries, each with its own index; for
-- one query with "or" there would be no index.
select id
  from (select id
          from tasuki_run
         where job_id = :job_id and scope_kind = :scope_kind and scope_id = :scope_id and slot = :slot
        union all
        select id
          from tasuki_run
         where idempotency_key = :idempotency_key) known
 order by id
 limit 1
