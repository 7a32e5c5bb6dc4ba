-- leader/mint: remembered for good.
insert into tasuki_term_history (epoch, holder, minted_at) values (:epoch, :holder, :now)
