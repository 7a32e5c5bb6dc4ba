-- run/under: what of these is still carried under the token. A list is a JSON text here.
select id, state, cancel_requested_at
  from tasuki_run
 where id in (select value from json_each(:ids))
   and lease_token = :token
   and state in ('ASSIGNED', 'RUNNING')
 order by id
