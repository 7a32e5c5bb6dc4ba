-- audit/list: audit entries in the order in which they were written.
select *
  from tasuki_audit
 where seq > :after
 order by seq
 limit :limit
