-- audit/append: one more row, which holds the hash of the one before.
insert into tasuki_audit (seq, at, actor, action, object, address, before_state, after_state, prev_hash, hash)
values (:seq, :at, :actor, :action, :object, :address, :before_state, :after_state, :prev_hash, :hash)
