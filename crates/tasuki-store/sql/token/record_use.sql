-- token/record_use: record that a token was used. At most once per minute: this is enough to find unused tokens, and
-- keeps read requests from writing each time.
update tasuki_api_token
   set last_used_at = :now
 where id = :id
   and (last_used_at is null or last_used_at < :now - 60000000)
