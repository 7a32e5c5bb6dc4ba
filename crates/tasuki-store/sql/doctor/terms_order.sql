-- doctor/terms_order: a term that was minted before the one it follows.
select epoch as id,
       1 as minted_earlier
  from (select epoch,
               minted_at,
               lag(minted_at) over (order by epoch) as minted_before
          from tasuki_term_history) x
 where minted_at < minted_before
 order by epoch
 limit :most
