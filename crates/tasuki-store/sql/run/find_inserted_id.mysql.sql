-- run/find_inserted_id: the id of the row that was just inserted on this connection.
select cast(last_insert_id() as signed) as id
