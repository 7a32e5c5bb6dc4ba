-- Who is there, who leads, and what they are told.

create table tasuki_worker (
    id blob not null primary key,
    node text not null,
    pid integer,
    address text,
    labels text,
    slots integer not null,
    function_slots integer not null,
    version text,
    started_at integer not null,
    heartbeat_at integer not null,
    draining_at integer,
    detached_at integer,
    detach_reason text,
    dead_at integer,
    gone_at integer,
    constraint tasuki_worker_slots check (slots >= 0 and function_slots >= 0)
);

-- The term is what leader writes are fenced by; the lease is renewed without touching it.
create table tasuki_leader_term (
    id integer not null primary key,
    epoch integer not null,
    holder blob,
    minted_at integer,
    constraint tasuki_leader_term_one check (id = 1)
);

create table tasuki_leader_lease (
    id integer not null primary key,
    epoch integer not null,
    holder blob,
    lease_until integer not null,
    renewed_at integer,
    fresh_since integer,
    constraint tasuki_leader_lease_one check (id = 1)
);

create table tasuki_term_history (
    epoch integer not null primary key,
    holder blob not null,
    minted_at integer not null
);

insert into tasuki_leader_term (id, epoch) values (1, 0);
insert into tasuki_leader_lease (id, epoch, lease_until) values (1, 0, 0);

-- Something happened and may start runs. Programs in any language insert here: event_type and payload, and if they
-- like dedupe_key and job_name; everything else has a default.
create table tasuki_event (
    id integer primary key autoincrement,
    event_type text not null,
    payload text,
    source text not null default 'sql',
    dedupe_key text,
    job_name text,
    -- In words that also the SQLite of somebody else understands, which may be older than ours.
    created_at integer not null default (
        cast(strftime('%s', 'now') as integer) * 1000000 + cast(substr(strftime('%f', 'now'), 4) as integer) * 1000
    ),
    processed_at integer,
    runs integer,
    problem text,
    constraint tasuki_event_dedupe unique (source, dedupe_key)
);
create index tasuki_event_open on tasuki_event (id) where processed_at is null;

create table tasuki_setting (
    name text not null primary key,
    value text not null,
    changed_at integer not null,
    changed_by text not null
);

-- One row: every change of settings raises it, so that nodes notice.
create table tasuki_setting_version (
    id integer not null primary key,
    version integer not null,
    constraint tasuki_setting_version_one check (id = 1)
);
insert into tasuki_setting_version (id, version) values (1, 0);

-- Counts and sums for each minute. The worker in the key keeps one row from being everybody's, the part (of the
-- connection) from being every connection's of one worker.
create table tasuki_stat (
    minute integer not null,
    job_id integer not null,
    outcome text not null,
    worker_id blob not null,
    part integer not null,
    runs integer not null,
    wait_us integer not null,
    run_us integer not null,
    primary key (minute, job_id, outcome, worker_id, part)
);
