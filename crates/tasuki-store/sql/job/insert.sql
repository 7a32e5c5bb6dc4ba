-- job/insert: create a job.
insert into tasuki_job (name, enabled, trigger_type, schedule_type, schedule_value, zone, dst_gap, dst_fold, misfire,
    misfire_value, event_types, event_filter, created_at, updated_at)
values (:name, :enabled, :trigger_type, :schedule_type, :schedule_value, :zone, :dst_gap, :dst_fold, :misfire,
    :misfire_value, :event_types, :event_filter, :now, :now)
