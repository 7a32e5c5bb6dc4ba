-- log/insert_chunk: add a chunk of captured output.
insert into tasuki_log_chunk (run_id, attempt_no, first_line, last_line, at, body)
values (:run_id, :attempt_no, :first_line, :last_line, :now, :body)
