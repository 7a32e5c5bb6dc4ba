-- Which jobs wait for events is asked whenever one comes: the answer must not cost a look at every definition.

create index tasuki_job_trigger on tasuki_job (trigger_type, id);
