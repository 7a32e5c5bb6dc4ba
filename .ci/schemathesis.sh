#!/usr/bin/env bash
# Tests the REST API against its OpenAPI document with schemathesis, which sends generated valid and invalid requests.
# An undocumented status, a response that does not match the document, or an accepted invalid request is a failure.
#
# usage: .ci/schemathesis.sh [SCHEMATHESIS OPTIONS]
#
# Runs alone or as a step of ./test. Set TASUKI_SEED to generate other requests than the default seed does.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
cache=${TASUKI_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/tasuki}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target} CARGO_TERM_COLOR=never

# The file "made" marks a complete environment; an incomplete one is created again.
environment=$cache/tools/schemathesis-$(cksum <.ci/schemathesis.txt | cut -d' ' -f1)
if [ ! -e "$environment/made" ]; then
    echo "creating a Python environment (once, in $environment)"
    rm -rf "$cache"/tools/schemathesis-*
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check -r .ci/schemathesis.txt
    touch "$environment/made"
fi

cargo build --quiet -p tasuki-web --example serve

folder=$(mktemp -d "${TMPDIR:-/tmp}/tasuki-schemathesis.XXXXXX") server=''
stop_server() {
    status=$?
    trap - EXIT
    exec 3>&- # the server ends when its standard input is closed
    if [ -n "$server" ] && ! wait "$server"; then
        echo "the server failed" >&2
        cat "$folder/server.log" >&2
        status=1
    fi
    rm -rf "$folder"
    exit "$status"
}
mkfifo "$folder/stop"
exec 3<>"$folder/stop"
trap stop_server EXIT
"$CARGO_TARGET_DIR/debug/examples/serve" "$folder" <"$folder/stop" 3>&- >"$folder/server.log" 2>&1 &
server=$!
for ((tries = 0; tries < 100; tries++)); do
    if grep -q '^token=' "$folder/server.log" || ! kill -0 "$server" 2>/dev/null; then break; fi
    sleep 0.1
done
url=$(sed -n 's/^url=//p' "$folder/server.log") token=$(sed -n 's/^token=//p' "$folder/server.log")
[ -n "$token" ] || { cat "$folder/server.log" >&2; exit 1; }

cd "$folder" # schemathesis writes its cache into the current directory
"$environment/bin/schemathesis" --config-file "$root/.ci/schemathesis.toml" run "$url/api/openapi.json" \
    --header "Authorization: Bearer $token" --max-examples 30 --seed "${TASUKI_SEED:-20261116}" \
    --request-timeout 40 --suppress-health-check all --continue-on-failure --warnings off --no-color "$@"
