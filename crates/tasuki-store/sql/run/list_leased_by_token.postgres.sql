-- run/list_leased_by_token: which of these runs are still assigned or running under the token.
select id, state, cancel_requested_at
  from tasuki_run
 where id = any(:ids)
   and lease_token = :token
   and state in ('ASSIGNED', 'RUNNING')
 order by id
