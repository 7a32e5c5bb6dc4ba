-- event/emit: something happened. The same pair of source and dedupe key twice is the same event: a conflict, which the
-- caller takes as the answer. There is no `returning` here.
insert into tasuki_event (event_type, payload, source, dedupe_key, job_name, created_at)
values (:event_type, :payload, :source, :dedupe_key, :job_name, :now)
