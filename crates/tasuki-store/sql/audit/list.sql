-- audit/list: in the order things were done.
select *
  from tasuki_audit
 where seq > :after
 order by seq
 limit :most
