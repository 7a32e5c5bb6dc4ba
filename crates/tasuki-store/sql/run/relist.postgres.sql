-- run/relist: those that are left of some that were listed together are listed each by itself.
update tasuki_run
   set more = 0
 where id = any(:ids)
   and more is distinct from 0
