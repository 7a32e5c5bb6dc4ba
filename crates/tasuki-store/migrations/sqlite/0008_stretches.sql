-- A row in due may stand for several runs that wait alike: so many more, whose ids follow its own. Only for tasks that were
-- submitted together, without a hold, an expiry or an instant after which they are skipped.

alter table tasuki_due add column more integer not null default 0
    constraint tasuki_due_more check (more >= 0 and more < 64 and (more = 0 or (exclusive = 0 and alone = 0 and skip_at is null)));

drop view tasuki_due_view;
create view tasuki_due_view as
select
    lane,
    strftime('%Y-%m-%dT%H:%M:%fZ', due_at / 1000000.0, 'unixepoch') as due_at,
    run_id,
    exclusive,
    alone,
    strftime('%Y-%m-%dT%H:%M:%fZ', skip_at / 1000000.0, 'unixepoch') as skip_at,
    more
from tasuki_due;

-- What a claim took in one go, told together. first_run and last_run: their ids follow one another, from the first to the last;
-- last_due: when the last of them was due; job_id: they are all of this job; dues: since when they waited, added up.
alter table tasuki_lease add column first_run integer;
alter table tasuki_lease add column last_run integer;
alter table tasuki_lease add column last_due integer;
alter table tasuki_lease add column job_id integer;
alter table tasuki_lease add column dues integer;
