-- token/revoke: revoke a token. Guard: not revoked before, so that the first instant is kept.
update tasuki_api_token
   set revoked_at = :now
 where id = :id
   and revoked_at is null
