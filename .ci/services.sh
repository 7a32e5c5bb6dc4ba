# Private database and Redis servers for tests, sourced by ./test. Each server is a child process of the script. It
# listens on its own port of 127.0.0.1, stores its data under $work, and has a random password. The servers run with
# durable settings: a write that a server acknowledged is still there after a crash.
#
# Needs from ./test: $work, record, die. Provides: start_services, stop_services, and the server URLs in
# TASUKI_TEST_PG, TASUKI_TEST_MYSQL, TASUKI_TEST_REDIS.

declare -A server_pid=() server_port=()

# For PostgreSQL, QUIT is an immediate shutdown: the next start recovers as after SIGKILL, but the server's child
# processes end together with it.
declare -A crash_signal=([postgres]=QUIT [mariadb]=KILL [redis]=KILL)

secret=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')

# Finds a free port below the kernel's range of ephemeral ports.
free_port() {
    local port
    while true; do
        port=$((20000 + RANDOM % 12000))
        (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# Runs a command as the server's own user if we are root: PostgreSQL refuses to run as root.
run_as() {
    local user=$1
    shift
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid "$user" --regid "$user" --init-groups "$@"
    else
        "$@"
    fi
}

# Makes a user the owner of a directory, if we are root.
chown_to() {
    if [ "$(id -u)" = 0 ]; then chown -R "$1:" "$2"; fi
}

# spawn NAME USER COMMAND...: starts a server in its own process group, so that Ctrl-C reaches only this script. The
# kernel kills the server if this script dies (--pdeathsig).
spawn() {
    local name=$1 user=$2 drop=()
    shift 2
    if [ "$(id -u)" = 0 ]; then drop=(--reuid "$user" --regid "$user" --init-groups); fi
    set -m
    setpriv "${drop[@]}" --pdeathsig KILL env HOME="$work/$name" TMPDIR="$work/$name" "$@" \
        </dev/null >>"$work/$name.log" 2>&1 &
    server_pid[$name]=$!
    set +m
}

# wait_until_ready NAME: waits until the server answers; fails if the server ends first.
wait_until_ready() {
    local name=$1 deadline=$((SECONDS + 60))
    while [ "$SECONDS" -lt "$deadline" ]; do
        if "ping_$name" >/dev/null 2>>"$work/$name.log"; then return 0; fi
        kill -0 "${server_pid[$name]}" 2>/dev/null || return 1
        sleep 0.1
    done
    die "$name runs but does not answer; its log ends:" "$(tail -n 15 "$work/$name.log")"
}

# launch NAME: starts the server on a free port. Another process may take the port first, so it tries five times.
launch() {
    local name=$1 try
    for ((try = 0; try < 5; try++)); do
        server_port[$name]=$(free_port)
        "serve_$name"
        if wait_until_ready "$name"; then return 0; fi
        crash "$name"
    done
    die "$name does not start; its log ends:" "$(tail -n 15 "$work/$name.log")"
}

# crash NAME: ends the server without an orderly shutdown.
crash() {
    local name=$1 pid=${server_pid[$1]:-}
    if [ -z "$pid" ]; then return 0; fi
    kill "-${crash_signal[$name]}" "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    unset "server_pid[$name]"
}

stop_services() {
    local name
    for name in "${!server_pid[@]}"; do crash "$name"; done
}

# --- PostgreSQL

pg_bin() {
    local initdb
    # A version directory without initdb contains only the client programs.
    initdb=$(find /usr/lib/postgresql -mindepth 3 -maxdepth 3 -path '*/bin/initdb' 2>/dev/null | sort -V | tail -n 1)
    echo "${initdb%/initdb}"
}

prepare_postgres() {
    mkdir -p "$work/postgres"
    printf '%s' "$secret" >"$work/postgres/password"
    chown_to postgres "$work/postgres"
    run_as postgres "$(pg_bin)/initdb" -D "$work/postgres/data" -U tasuki -A md5 --no-sync -E UTF8 \
        --locale=C.UTF-8 --pwfile="$work/postgres/password" >"$work/postgres.log" 2>&1
}

# The time zone is an unusual one: times must be right whatever the server's time zone is.
serve_postgres() {
    spawn postgres postgres "$(pg_bin)/postgres" -D "$work/postgres/data" \
        -p "${server_port[postgres]}" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
        -c fsync=on -c synchronous_commit=on -c full_page_writes=on \
        -c max_connections=300 -c timezone=Pacific/Chatham
}

postgres() {
    PGPASSWORD=$secret PGCONNECT_TIMEOUT=5 "$(pg_bin)/psql" -X -q -A -t -v ON_ERROR_STOP=1 \
        -h 127.0.0.1 -p "${server_port[postgres]}" -U tasuki -d "${2:-postgres}" -c "$1"
}

ping_postgres() { [ "$(postgres 'select 1')" = 1 ]; }
version_postgres() { postgres "show server_version" | cut -d' ' -f1; }
create_database_postgres() { postgres "create database tasuki"; }
write_probe_postgres() { postgres "create table probe (n int); insert into probe values (42)" tasuki; }
read_probe_postgres() { postgres "select n from probe" tasuki; }
delete_probe_postgres() { postgres "drop table probe" tasuki; }
is_durable_postgres() {
    postgres "select current_setting('fsync') || current_setting('synchronous_commit')
        || current_setting('full_page_writes') = 'ononon'"
}

# --- MariaDB

prepare_mariadb() {
    mkdir -p "$work/mariadb"
    chown_to mysql "$work/mariadb"
    run_as mysql env TMPDIR="$work/mariadb" mariadb-install-db --no-defaults --datadir="$work/mariadb/data" \
        --auth-root-authentication-method=normal --skip-test-db >"$work/mariadb.log" 2>&1
    # The server runs this file at every start; each statement must stand on one line.
    cat >"$work/mariadb/init.sql" <<SQL
create database if not exists tasuki;
create user if not exists tasuki@'127.0.0.1' identified by '$secret';
grant all on *.* to tasuki@'127.0.0.1' with grant option;
alter user root@localhost identified by '$secret';
SQL
    chown_to mysql "$work/mariadb"
}

serve_mariadb() {
    spawn mariadb mysql mariadbd --no-defaults --datadir="$work/mariadb/data" \
        --socket="$work/mariadb/socket" --pid-file="$work/mariadb/pid" \
        --port="${server_port[mariadb]}" --bind-address=127.0.0.1 --skip-name-resolve \
        --innodb-flush-log-at-trx-commit=1 --innodb-doublewrite=1 --skip-log-bin \
        --character-set-server=utf8mb4 --collation-server=utf8mb4_bin \
        --max-connections=300 --default-time-zone=+12:45 --init-file="$work/mariadb/init.sql"
}

mariadb_sql() {
    MYSQL_PWD=$secret mariadb --no-defaults --connect-timeout=5 -N -B -h 127.0.0.1 \
        -P "${server_port[mariadb]}" -u tasuki -e "$1" tasuki
}

ping_mariadb() { [ "$(mariadb_sql 'select 1')" = 1 ]; }
version_mariadb() { mariadb_sql "select version()" | cut -d- -f1; }
create_database_mariadb() { :; } # init.sql creates it at every start
write_probe_mariadb() { mariadb_sql "create table probe (n int); insert into probe values (42)"; }
read_probe_mariadb() { mariadb_sql "select n from probe"; }
delete_probe_mariadb() { mariadb_sql "drop table probe"; }
is_durable_mariadb() {
    mariadb_sql "select if(@@innodb_flush_log_at_trx_commit = 1 and @@innodb_doublewrite = 1, 't', 'f')"
}

# --- Redis

prepare_redis() {
    mkdir -p "$work/redis"
    printf 'requirepass %s\n' "$secret" >"$work/redis/conf"
    chown_to redis "$work/redis"
}

serve_redis() {
    spawn redis redis redis-server "$work/redis/conf" --port "${server_port[redis]}" \
        --bind 127.0.0.1 --dir "$work/redis" --daemonize no --save '' \
        --appendonly yes --appendfsync always
}

redis() { REDISCLI_AUTH=$secret redis-cli -h 127.0.0.1 -p "${server_port[redis]}" "$@"; }
ping_redis() { [ "$(redis ping)" = PONG ]; }
version_redis() { redis info server | tr -d '\r' | sed -n 's/^redis_version://p'; }
create_database_redis() { :; }
write_probe_redis() { [ "$(redis set probe 42)" = OK ]; }
read_probe_redis() { redis get probe; }
delete_probe_redis() { redis del probe; }
is_durable_redis() {
    [ "$(redis config get appendfsync | tail -n 1)" = always ] && echo t
}

# --- all servers

# start_service NAME: starts the server and checks its durability: an acknowledged write must still be there after a
# crash and a new start.
start_service() {
    local name=$1 found
    "prepare_$name" || die "$name cannot be set up:" "$(tail -n 15 "$work/$name.log")"
    launch "$name"
    "create_database_$name"
    [ "$("is_durable_$name")" = t ] || die "$name runs with settings that can lose acknowledged writes"
    "write_probe_$name" >/dev/null
    crash "$name"
    launch "$name"
    found=$("read_probe_$name") || found=nothing
    [ "$found" = 42 ] || die "$name lost an acknowledged write in a crash: found $found"
    "delete_probe_$name" >/dev/null
}

start_services() {
    local name began
    for name in postgres mariadb redis; do
        began=$SECONDS
        start_service "$name"
        record "$name $("version_$name")" "127.0.0.1:${server_port[$name]}" \
            "ok, keeps writes after a crash" $((SECONDS - began))
    done
    export TASUKI_TEST_PG="postgres://tasuki:$secret@127.0.0.1:${server_port[postgres]}/tasuki"
    export TASUKI_TEST_MYSQL="mysql://tasuki:$secret@127.0.0.1:${server_port[mariadb]}/tasuki"
    export TASUKI_TEST_REDIS="redis://:$secret@127.0.0.1:${server_port[redis]}/0"
}
