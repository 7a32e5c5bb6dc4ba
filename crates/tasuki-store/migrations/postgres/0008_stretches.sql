-- A row in due may stand for several runs that wait alike: so many more, whose ids follow its own. Only for tasks that were
-- submitted together, without a hold, an expiry or an instant after which they are skipped.

alter table tasuki_due add column more smallint not null default 0
    constraint tasuki_due_more check (more >= 0 and more < 64 and (more = 0 or (exclusive = 0 and alone = 0 and skip_at is null)));

create or replace view tasuki_due_view as
select
    lane,
    to_timestamp(due_at / 1000000.0) as due_at,
    run_id,
    exclusive,
    alone,
    to_timestamp(skip_at / 1000000.0) as skip_at,
    more
from tasuki_due;
