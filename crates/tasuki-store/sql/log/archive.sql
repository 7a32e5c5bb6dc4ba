-- log/archive: the body is elsewhere too, uploaded and read back. Once, and only as long as it was.
update tasuki_log
   set log_ref = :log_ref,
       sha256 = :sha256,
       archived_at = :now
 where run_id = :run_id
   and attempt_no = :attempt_no
   and lines_count = :lines_count
   and archived_at is null
