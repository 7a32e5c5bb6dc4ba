-- run/list_leased_by_token: which of these runs are still assigned or running under the token. The list is a JSON text,
-- because there are no array parameters.
select r.id, r.state, r.cancel_requested_at
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
 where r.lease_token = :token
   and r.state in ('ASSIGNED', 'RUNNING')
 order by r.id
