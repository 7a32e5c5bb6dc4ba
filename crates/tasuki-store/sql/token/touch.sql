-- token/touch: it was used. Once a minute is enough to see which ones nobody needs, and keeps reading from becoming writing.
update tasuki_api_token
   set last_used_at = :now
 where id = :id
   and (last_used_at is null or last_used_at < :now - 60000000)
