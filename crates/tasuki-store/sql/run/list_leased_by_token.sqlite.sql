-- run/list_leased_by_token: which of these runs are still assigned or running under the token. The list is a JSON text,
-- because there are no array parameters.
select id, state, cancel_requested_at
  from tasuki_run
 where id in (select value from json_each(:ids))
   and lease_token = :token
   and state in ('ASSIGNED', 'RUNNING')
 order by id
