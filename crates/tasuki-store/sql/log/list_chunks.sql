-- log/list_chunks: captured output, starting with the chunk that contains the line. The chunk is found by its key, so a
-- late page costs as much as the first one.
select first_line, last_line, body
  from tasuki_log_chunk
 where run_id = :run_id
   and attempt_no = :attempt_no
   and first_line >= coalesce((select max(c.first_line)
                                 from tasuki_log_chunk c
                                where c.run_id = :run_id
                                  and c.attempt_no = :attempt_no
                                  and c.first_line <= :from_line), 0)
 order by first_line
 limit :limit
