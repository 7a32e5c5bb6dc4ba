-- audit/insert: append a row, which contains the hash of the previous row.
insert into tasuki_audit (seq, at, actor, action, object, address, before_state, after_state, prev_hash, hash)
values (:seq, :at, :actor, :action, :object, :address, :before_state, :after_state, :prev_hash, :hash)
