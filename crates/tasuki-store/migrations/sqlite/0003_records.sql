-- What was printed, and what people did.

create table tasuki_log (
    run_id integer not null,
    attempt_no integer not null,
    bytes integer not null default 0,
    lines_count integer not null default 0,
    truncated integer not null default 0,
    log_ref text,
    sha256 blob,
    archived_at integer,
    primary key (run_id, attempt_no)
);

create table tasuki_log_chunk (
    run_id integer not null,
    attempt_no integer not null,
    first_line integer not null,
    last_line integer not null,
    at integer not null,
    body text not null,
    primary key (run_id, attempt_no, first_line)
);

-- Who did what, on what, from where; each row holds the hash of the one before.
create table tasuki_audit (
    seq integer not null primary key,
    at integer not null,
    actor text not null,
    action text not null,
    object text not null,
    address text,
    before_state text,
    after_state text,
    prev_hash blob not null,
    hash blob not null
);

-- The end of the chain: locked by whoever appends, so that rows follow one another without a gap.
create table tasuki_audit_head (
    id integer not null primary key,
    seq integer not null,
    hash blob not null,
    constraint tasuki_audit_head_one check (id = 1)
);
insert into tasuki_audit_head (id, seq, hash) values (1, 0, zeroblob(32));

create table tasuki_user (
    id integer primary key autoincrement,
    name text not null,
    password_hash text,
    role text not null,
    language text,
    disabled_at integer,
    created_at integer not null,
    constraint tasuki_user_name unique (name),
    constraint tasuki_user_role check (role in ('viewer', 'operator', 'author', 'admin'))
);

create table tasuki_session (
    token_hash blob not null primary key,
    user_id integer not null,
    csrf_hash blob not null,
    created_at integer not null,
    seen_at integer not null,
    expires_at integer not null
);

create table tasuki_api_token (
    id integer primary key autoincrement,
    name text not null,
    token_hash blob not null,
    role text not null,
    created_at integer not null,
    created_by text not null,
    expires_at integer,
    last_used_at integer,
    revoked_at integer,
    constraint tasuki_api_token_hash unique (token_hash),
    constraint tasuki_api_token_role check (role in ('viewer', 'operator', 'author', 'admin'))
);
