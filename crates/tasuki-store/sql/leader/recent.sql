-- leader/recent: the newest terms, newest first.
select epoch, holder, minted_at from tasuki_term_history order by epoch desc limit :most
