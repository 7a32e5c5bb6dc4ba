-- log/delete_archived_chunks: delete captured output that is archived. Every log is either in the database or in an
-- object with the recorded hash.
delete from tasuki_log_chunk
 where run_id = :run_id
   and attempt_no = :attempt_no
   and exists (select 1
                 from tasuki_log l
                where l.run_id = :run_id
                  and l.attempt_no = :attempt_no
                  and l.archived_at is not null)
