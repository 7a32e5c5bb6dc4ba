-- token/insert: create an API token. Only its hash is stored, so that reading this table does not allow anyone to act.
insert into tasuki_api_token (name, token_hash, role, created_at, created_by, expires_at)
values (:name, :token_hash, :role, :now, :created_by, :now + :lifetime)
