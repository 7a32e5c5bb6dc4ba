-- event/emit: something happened. The same pair of source and dedupe key twice is the same event, and makes nothing.
insert into tasuki_event (event_type, payload, source, dedupe_key, job_name, created_at)
values (:event_type, :payload, :source, :dedupe_key, :job_name, :now)
on conflict do nothing
returning id
