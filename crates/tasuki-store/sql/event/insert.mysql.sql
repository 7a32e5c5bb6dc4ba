-- event/insert: add an event. If the pair of source and dedupe key exists, the insert fails with a conflict, and the
-- caller reads the existing event. MariaDB and MySQL have no common `returning`.
insert into tasuki_event (event_type, payload, source, dedupe_key, job_name, created_at)
values (:event_type, :payload, :source, :dedupe_key, :job_name, :now)
