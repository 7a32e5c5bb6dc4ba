-- job/version_show: what a run was made of.
select * from tasuki_job_version where job_id = :job_id and version = :version
