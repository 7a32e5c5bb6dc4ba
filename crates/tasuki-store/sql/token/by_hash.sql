-- token/by_hash: whose token this is, and the time, by which the caller judges whether it still counts.
select t.*,
       :now as clock
  from tasuki_api_token t
 where t.token_hash = :token_hash
