-- due/lock: what can be claimed, passing over what others are claiming and what must wait for another run of its kind.
-- PostgreSQL claims in one statement, and SQLite mostly in one go.
select d.run_id, d.due_at, d.exclusive, d.alone, d.more
  from tasuki_due d
 where d.lane = :lane
   and d.due_at >= :after_at
   and d.due_at <= :now
   and (d.skip_at is null or d.skip_at >= :now)
   and (d.exclusive = 0 or not exists (
           select 1
             from tasuki_run r
             join tasuki_hold h on h.job_id = r.job_id and h.scope_kind = r.scope_kind and h.scope_id = r.scope_id
            where r.id = d.run_id))
 order by d.due_at, d.run_id
 limit :most
   for update skip locked
