-- What was printed, and what people did.

create table tasuki_log (
    run_id bigint not null,
    attempt_no integer not null,
    bytes bigint not null default 0,
    lines_count bigint not null default 0,
    truncated smallint not null default 0,
    log_ref longtext,
    sha256 binary(32),
    archived_at bigint,
    primary key (run_id, attempt_no)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

create table tasuki_log_chunk (
    run_id bigint not null,
    attempt_no integer not null,
    first_line bigint not null,
    last_line bigint not null,
    at bigint not null,
    body longtext not null,
    primary key (run_id, attempt_no, first_line)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- Who did what, on what, from where; each row holds the hash of the one before.
create table tasuki_audit (
    seq bigint not null primary key,
    at bigint not null,
    actor varchar(191) not null,
    action varchar(64) not null,
    object varchar(191) not null,
    address varchar(191),
    before_state longtext,
    after_state longtext,
    prev_hash binary(32) not null,
    hash binary(32) not null
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- The end of the chain: locked by whoever appends, so that rows follow one another without a gap.
create table tasuki_audit_head (
    id smallint not null primary key,
    seq bigint not null,
    hash binary(32) not null,
    constraint tasuki_audit_head_one check (id = 1)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;
insert into tasuki_audit_head (id, seq, hash) values (1, 0, repeat(x'00', 32));

create table tasuki_user (
    id bigint not null auto_increment primary key,
    name varchar(191) not null,
    password_hash longtext,
    role varchar(64) not null,
    language varchar(64),
    disabled_at bigint,
    created_at bigint not null,
    constraint tasuki_user_name unique (name),
    constraint tasuki_user_role check (role in ('viewer', 'operator', 'author', 'admin'))
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

create table tasuki_session (
    token_hash binary(32) not null primary key,
    user_id bigint not null,
    csrf_hash binary(32) not null,
    created_at bigint not null,
    seen_at bigint not null,
    expires_at bigint not null
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

create table tasuki_api_token (
    id bigint not null auto_increment primary key,
    name varchar(191) not null,
    token_hash binary(32) not null,
    role varchar(64) not null,
    created_at bigint not null,
    created_by varchar(191) not null,
    expires_at bigint,
    last_used_at bigint,
    revoked_at bigint,
    constraint tasuki_api_token_hash unique (token_hash),
    constraint tasuki_api_token_role check (role in ('viewer', 'operator', 'author', 'admin'))
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;
