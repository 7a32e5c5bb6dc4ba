-- transition_record/insert: record a rare transition of a run.
insert into tasuki_run_note (run_id, attempt_no, verb, actor, reason, epoch, token_hash, at)
values (:run_id, :attempt_no, :verb, :actor, :reason, :epoch, :token_hash, :now)
