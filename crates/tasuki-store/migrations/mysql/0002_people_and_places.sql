-- Who is there, who leads, and what they are told.

create table tasuki_worker (
    id binary(16) not null primary key,
    node varchar(191) not null,
    pid integer,
    address varchar(191),
    labels longtext,
    slots integer not null,
    function_slots integer not null,
    version varchar(191),
    started_at bigint not null,
    heartbeat_at bigint not null,
    draining_at bigint,
    detached_at bigint,
    detach_reason longtext,
    dead_at bigint,
    gone_at bigint,
    constraint tasuki_worker_slots check (slots >= 0 and function_slots >= 0)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- The term is what leader writes are fenced by; the lease is renewed without touching it.
create table tasuki_leader_term (
    id smallint not null primary key,
    epoch bigint not null,
    holder binary(16),
    minted_at bigint,
    constraint tasuki_leader_term_one check (id = 1)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

create table tasuki_leader_lease (
    id smallint not null primary key,
    epoch bigint not null,
    holder binary(16),
    lease_until bigint not null,
    renewed_at bigint,
    fresh_since bigint,
    constraint tasuki_leader_lease_one check (id = 1)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

create table tasuki_term_history (
    epoch bigint not null primary key,
    holder binary(16) not null,
    minted_at bigint not null
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

insert into tasuki_leader_term (id, epoch) values (1, 0);
insert into tasuki_leader_lease (id, epoch, lease_until) values (1, 0, 0);

-- Something happened and may start runs. Programs in any language insert here: event_type and payload, and if they
-- like dedupe_key and job_name; everything else has a default.
create table tasuki_event (
    id bigint not null auto_increment primary key,
    event_type varchar(191) not null,
    payload longtext,
    source varchar(191) not null default 'sql',
    dedupe_key varchar(191),
    job_name varchar(191),
    created_at bigint not null default (timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))),
    processed_at bigint,
    runs integer,
    problem longtext,
    constraint tasuki_event_dedupe unique (source, dedupe_key)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;
create index tasuki_event_open on tasuki_event (processed_at, id);

create table tasuki_setting (
    name varchar(191) not null primary key,
    value varchar(191) not null,
    changed_at bigint not null,
    changed_by varchar(191) not null
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- One row: every change of settings raises it, so that nodes notice.
create table tasuki_setting_version (
    id smallint not null primary key,
    version bigint not null,
    constraint tasuki_setting_version_one check (id = 1)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;
insert into tasuki_setting_version (id, version) values (1, 0);

-- Counts and sums for each minute. The worker in the key keeps one row from being everybody's, the part (of the
-- connection) from being every connection's of one worker.
create table tasuki_stat (
    minute bigint not null,
    job_id bigint not null,
    outcome varchar(64) not null,
    worker_id binary(16) not null,
    part smallint not null,
    runs bigint not null,
    wait_us bigint not null,
    run_us bigint not null,
    primary key (minute, job_id, outcome, worker_id, part)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;
