-- note/add_many: a rare move of several runs, told. Each is a list: run, attempt, hash of its token.
insert into tasuki_run_note (run_id, attempt_no, verb, actor, reason, epoch, token_hash, at)
select x.run_id, x.attempt_no, :verb, :actor, :reason, null, x.token_hash, :now
  from json_table(:runs, '$[*]' columns (
           run_id bigint path '$[0]',
           attempt_no bigint path '$[1]',
           token_hash varchar(64) path '$[2]')) x
