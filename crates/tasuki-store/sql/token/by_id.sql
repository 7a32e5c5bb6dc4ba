-- token/by_id: one token, held still while it is revoked; and the time.
select t.*,
       :now as clock
  from tasuki_api_token t
 where t.id = :id
   for update
