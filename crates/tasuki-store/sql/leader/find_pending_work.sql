-- leader/find_pending_work: the database's clock, and the first row of everything that a leader would have to process.
select :now as clock,
       (select c.next_fire from tasuki_cursor c where c.next_fire <= :now + :horizon order by c.next_fire limit 1) as next_fire,
       (select e.id from tasuki_event e where e.processed_at is null order by e.id limit 1) as event_id,
       (select d.lane from tasuki_due d order by d.lane limit 1) as lane
