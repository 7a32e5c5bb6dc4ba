-- lease/delete: delete a lease. The caller has checked that no assigned or running run is left under it.
delete from tasuki_lease
 where token = :token
