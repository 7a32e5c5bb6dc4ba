-- token/find_by_hash: the token with this hash, and the database's clock, with which the caller decides whether the
-- token is valid.
select t.*,
       :now as clock
  from tasuki_api_token t
 where t.token_hash = :token_hash
