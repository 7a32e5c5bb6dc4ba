-- run/asking: which of these run under their tokens, held still; how long their leases last, whether nobody was asked about
-- them yet, and whether an answer comes in time. The lease is read in a subquery: a lock of its own would come after its run's.
select r.id, r.attempt_no, r.lease_token,
       (select l.lease_until from tasuki_lease l where l.token = r.lease_token) as lease_until,
       case when coalesce(r.continuation, 'NONE') = 'NONE' then 1 else 0 end as unasked,
       case when r.continuation = 'NONE' or r.continuation = 'CONFIRMING' and r.continuation_deadline > :now then 1 else 0 end as in_time
  from json_table(:runs, '$[*]' columns (id bigint path '$[0]', token char(32) path '$[1]')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
 where r.state = 'RUNNING'
   and r.lease_token = unhex(x.token)
   for update
