-- leader/list_terms: every term, in order.
select epoch, holder, began_at from tasuki_term_history order by epoch
