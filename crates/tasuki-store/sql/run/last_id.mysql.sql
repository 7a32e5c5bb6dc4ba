-- run/last_id: the row just inserted on this connection.
select cast(last_insert_id() as signed) as id
