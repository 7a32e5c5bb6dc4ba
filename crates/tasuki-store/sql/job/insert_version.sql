-- job/insert_version: add a new version: what the runs of the job execute from now on.
insert into tasuki_job_version (job_id, version, kind, spec, lane, concurrency, max_attempts, max_releases, backoff_us,
    backoff_cap_us, jitter_percent, retry_lost, labels, created_at)
values (:job_id, :version, :kind, :spec, :lane, :concurrency, :max_attempts, :max_releases, :backoff_us,
    :backoff_cap_us, :jitter_percent, :retry_lost, :labels, :now)
