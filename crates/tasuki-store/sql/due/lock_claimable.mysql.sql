-- due/lock_claimable: due rows that a worker can claim, without those that other transactions have locked and those
-- that wait for a hold. Only for MariaDB and the slow path of SQLite: PostgreSQL claims with one statement, and SQLite
-- usually with one script.
select d.run_id, d.due_at, d.exclusive, d.isolated, d.extra_runs
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
 limit :limit
   for update skip locked
