-- token/revoke: it counts no more. Held back where it was revoked before, so that the first time stays known.
update tasuki_api_token
   set revoked_at = :now
 where id = :id
   and revoked_at is null
