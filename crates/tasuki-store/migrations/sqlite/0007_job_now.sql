-- Definitions with what their runs are made of now.

create view tasuki_job_now as
select j.*,
       v.version as spec_version,
       v.kind,
       v.spec,
       v.lane,
       v.concurrency,
       v.max_attempts,
       v.max_releases,
       v.backoff_us,
       v.backoff_cap_us,
       v.jitter_percent,
       v.retry_lost,
       v.labels
  from tasuki_job j
  join tasuki_job_version v
    on v.job_id = j.id
   and v.version = (select max(n.version) from tasuki_job_version n where n.job_id = j.id);
