-- due/take_many: the rows that were found; the places are a JSON list of (due_at, run_id).
delete from tasuki_due
 where (lane, due_at, run_id) in (
       select :lane, json_extract(value, '$[0]'), json_extract(value, '$[1]') from json_each(:places))
