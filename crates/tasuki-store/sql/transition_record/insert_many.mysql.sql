-- transition_record/insert_many: record a rare transition of several runs. Each element of the JSON list is: run,
-- attempt, hash of the lease token.
insert into tasuki_run_note (run_id, attempt_no, verb, actor, reason, epoch, token_hash, at)
select x.run_id, x.attempt_no, :verb, :actor, :reason, null, x.token_hash, :now
  from json_table(:runs, '$[*]' columns (
           run_id bigint path '$[0]',
           attempt_no bigint path '$[1]',
           token_hash varchar(64) path '$[2]')) x
