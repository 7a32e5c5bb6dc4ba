-- job/find_version: one version of a job.
select * from tasuki_job_version where job_id = :job_id and version = :version
