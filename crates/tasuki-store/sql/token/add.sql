-- token/add: somebody may act through the API from now on. Only a hash of the token is kept: who reads this table cannot act.
insert into tasuki_api_token (name, token_hash, role, created_at, created_by, expires_at)
values (:name, :token_hash, :role, :now, :created_by, :now + :lifetime)
