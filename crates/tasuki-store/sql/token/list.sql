-- token/list: all tokens, including revoked ones, because the audit log still refers to them.
select t.*,
       :now as clock
  from tasuki_api_token t
 order by t.id
