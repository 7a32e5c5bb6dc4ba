-- leader/history: every term there was.
select epoch, holder, minted_at from tasuki_term_history order by epoch
