-- run/lock_for_confirm: T15: which of these runs run under their tokens (locked), until when their leases last, whether
-- confirming can begin (it has not begun yet), and whether a confirmation is in time. The lease is read by a subquery,
-- because locking it here would lock it after its run.
select r.id, r.attempt_no, r.lease_token,
       (select l.lease_until from tasuki_lease l where l.token = r.lease_token) as lease_until,
       case when coalesce(r.continuation, 'NONE') = 'NONE' then 1 else 0 end as can_begin,
       case when r.continuation = 'NONE' or r.continuation = 'CONFIRMING' and r.continuation_deadline > :now then 1 else 0 end as in_time
  from json_table(:runs, '$[*]' columns (id bigint path '$[0]', token char(32) path '$[1]')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
 where r.state = 'RUNNING'
   and r.lease_token = unhex(x.token)
   for update
