-- token/lock_by_id: lock one token while it is revoked; also returns the database's clock.
select t.*,
       :now as clock
  from tasuki_api_token t
 where t.id = :id
   for update
