-- event/insert: add an event. If the pair of source and dedupe key exists, it is the same event and nothing is
-- inserted.
insert into tasuki_event (event_type, payload, source, dedupe_key, job_name, created_at)
values (:event_type, :payload, :source, :dedupe_key, :job_name, :now)
on conflict do nothing
returning id
