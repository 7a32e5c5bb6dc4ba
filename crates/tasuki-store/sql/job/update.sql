-- job/update: change a job. Guard: it still has the version that was read.
update tasuki_job
   set enabled = :enabled,
       trigger_type = :trigger_type,
       schedule_type = :schedule_type,
       schedule_value = :schedule_value,
       zone = :zone,
       dst_gap = :dst_gap,
       dst_fold = :dst_fold,
       misfire = :misfire,
       misfire_value = :misfire_value,
       event_types = :event_types,
       event_filter = :event_filter,
       paused_at = :paused_at,
       paused_until = :paused_until,
       paused_reason = :paused_reason,
       deleted_at = :deleted_at,
       updated_at = :updated_at,
       version = version + 1
 where id = :id
   and version = :expected
