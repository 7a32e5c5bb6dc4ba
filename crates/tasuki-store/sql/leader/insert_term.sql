-- leader/insert_term: record the new term in the history.
insert into tasuki_term_history (epoch, holder, began_at) values (:epoch, :holder, :now)
