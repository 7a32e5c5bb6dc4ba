-- run/lock_for_confirm: T15: which of these runs run under their tokens, until when their leases last, whether
-- confirming can begin (it has not begun yet), and whether a confirmation is in time.
select r.id, r.attempt_no, r.lease_token,
       (select l.lease_until from tasuki_lease l where l.token = r.lease_token) as lease_until,
       case when coalesce(r.continuation, 'NONE') = 'NONE' then 1 else 0 end as can_begin,
       case when r.continuation = 'NONE' or r.continuation = 'CONFIRMING' and r.continuation_deadline > :now then 1 else 0 end as in_time
  from json_each(:runs) x
 cross join tasuki_run r on r.id = json_extract(x.value, '$[0]')
 where r.state = 'RUNNING'
   and hex(r.lease_token) = json_extract(x.value, '$[1]')
