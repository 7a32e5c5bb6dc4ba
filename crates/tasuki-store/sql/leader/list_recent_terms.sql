-- leader/list_recent_terms: the newest terms, newest first.
select epoch, holder, began_at from tasuki_term_history order by epoch desc limit :limit
