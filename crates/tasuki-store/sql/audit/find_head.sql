-- audit/find_head: the end of the chain.
select seq, hash from tasuki_audit_head where id = 1
