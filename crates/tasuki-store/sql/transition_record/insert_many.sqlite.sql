-- transition_record/insert_many: record a rare transition of several runs. Each element of the JSON list is: run,
-- attempt, hash of the lease token.
insert into tasuki_run_note (run_id, attempt_no, verb, actor, reason, epoch, token_hash, at)
select json_extract(value, '$[0]'), json_extract(value, '$[1]'), :verb, :actor, :reason, null, json_extract(value, '$[2]'), :now
  from json_each(:runs)
