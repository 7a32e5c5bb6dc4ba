-- token/list: every token there was, revoked ones too: they are still named in the audit.
select t.*,
       :now as clock
  from tasuki_api_token t
 order by t.id
