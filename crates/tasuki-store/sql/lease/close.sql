-- lease/close: only when no run is left under it.
delete from tasuki_lease
 where token = :token
