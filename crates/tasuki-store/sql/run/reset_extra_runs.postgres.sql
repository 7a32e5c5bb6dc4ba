-- run/reset_extra_runs: give each of these runs a list entry of its own, after retention deleted others that shared
-- their entry.
update tasuki_run
   set extra_runs = 0
 where id = any(:ids)
   and extra_runs is distinct from 0
