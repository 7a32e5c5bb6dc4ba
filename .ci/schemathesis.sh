#!/usr/bin/env bash
# Asks the REST API whatever its OpenAPI document allows, and a good deal of what it forbids. A status that is not
# documented, an answer that is not as documented, or a wrong request that is taken is a failure.
#
# usage: .ci/schemathesis.sh [SCHEMATHESIS OPTIONS]
#
# Alone or as a step of ./test. TASUKI_SEED chooses other questions than the usual ones.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
cache=${TASUKI_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/tasuki}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target} CARGO_TERM_COLOR=never

# An environment that was made only in part has no mark, and is made anew.
environment=$cache/tools/schemathesis-$(cksum <.ci/schemathesis.txt | cut -d' ' -f1)
if [ ! -e "$environment/made" ]; then
    echo "making a Python environment (once, into $environment)"
    rm -rf "$cache"/tools/schemathesis-*
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check -r .ci/schemathesis.txt
    touch "$environment/made"
fi

cargo build --quiet -p tasuki-web --example serve

place=$(mktemp -d "${TMPDIR:-/tmp}/tasuki-schemathesis.XXXXXX") server=''
leave() {
    status=$?
    trap - EXIT
    exec 3>&- # the server ends with its standard input
    if [ -n "$server" ] && ! wait "$server"; then
        echo "the server did not end well" >&2
        cat "$place/said" >&2
        status=1
    fi
    rm -rf "$place"
    exit "$status"
}
mkfifo "$place/stop"
exec 3<>"$place/stop"
trap leave EXIT
"$CARGO_TARGET_DIR/debug/examples/serve" "$place" <"$place/stop" 3>&- >"$place/said" 2>&1 &
server=$!
for ((tries = 0; tries < 100; tries++)); do
    if grep -q '^token=' "$place/said" || ! kill -0 "$server" 2>/dev/null; then break; fi
    sleep 0.1
done
url=$(sed -n 's/^url=//p' "$place/said") token=$(sed -n 's/^token=//p' "$place/said")
[ -n "$token" ] || { cat "$place/said" >&2; exit 1; }

cd "$place" # where it leaves what it remembers
"$environment/bin/schemathesis" --config-file "$root/.ci/schemathesis.toml" run "$url/api/openapi.json" \
    --header "Authorization: Bearer $token" --max-examples 30 --seed "${TASUKI_SEED:-20261116}" \
    --request-timeout 40 --suppress-health-check all --continue-on-failure --warnings off --no-color "$@"
