# Shared by the scripts beside it; each is called as `bash tests/clients/NAME.sh STAGE` with the folder that
# `cargo xtask stage` made. From the environment:
#   SERVER_IN, CLIENT_IN  words before a program that put it in its place (`ip netns exec NAME`); default: here
#   HOST                  the server's address; default 127.0.0.1
#   CLIENT_HOST           the client's address; default 127.0.0.1
# Every program runs under `timeout`, and what it says is kept in a folder that the script removes at its end.

set -u
export LC_ALL=C
name=$(basename "$0" .sh)
here=$(cd "$(dirname "$0")" && pwd)
stage=${1:?usage: $name.sh STAGE}
server_in=${SERVER_IN:-}
client_in=${CLIENT_IN:-}
host=${HOST:-127.0.0.1}
client_host=${CLIENT_HOST:-127.0.0.1}
# How long one program may take, in seconds. Ten times what a busy machine needs.
limit=60
work=$(mktemp -d)
checked=0

ended() {
    # Killing the jobs ends `timeout`, which passes the signal on to the program.
    jobs -p | xargs --no-run-if-empty kill 2>/dev/null
    wait
    rm -rf "$work"
}
trap ended EXIT
trap 'exit 1' TERM INT

# fail TEXT [FILE]...: says why, shows the ends of the files and ends the script.
fail() {
    echo "$name: FAILED: $1"
    shift
    for file in "$@"; do
        echo "--- $file"
        tail -n 40 "$file"
    done
    exit 1
}

# Runs a program on the staged libraries: in either's place, or here.
on_server() { exec timeout --kill-after=5 $limit $server_in "$stage/bin/ironverbs" run -- "$@"; }
on_client() { exec timeout --kill-after=5 $limit $client_in "$stage/bin/ironverbs" run -- "$@"; }

# await WHAT FILE COMMAND...: waits until COMMAND succeeds, while the last background job lives.
await() {
    local what=$1 file=$2 started=$SECONDS
    shift 2
    until "$@"; do
        kill -0 $! 2>/dev/null || fail "ended before $what" "$file"
        [ $((SECONDS - started)) -lt $limit ] || fail "waited in vain for $what" "$file"
        sleep 0.02
    done
}

# Whether something listens on a TCP port in the server's place.
listens() { [ -n "$($server_in ss -Hltn "sport = :$1")" ]; }

# says FILE REGEX...: what must be in an output.
says() {
    local file=$1
    shift
    for regex in "$@"; do
        grep -qE -e "$regex" "$file" || fail "no line is like: $regex" "$file"
        checked=$((checked + 1))
    done
}

# says_not FILE REGEX...: what must not be in it.
says_not() {
    local file=$1
    shift
    for regex in "$@"; do
        ! grep -E -e "$regex" "$file" || fail "a line is like: $regex" "$file"
        checked=$((checked + 1))
    done
}

# alone PROGRAM ARGUMENT...: runs one program to its success; its output is in $out.
alone() {
    out=$work/out
    (on_client "$@") >"$out" 2>&1 || fail "exit status $?: $*" "$out"
}

# Runs a server and a client to the success of both: `pair PORT SERVER... -- CLIENT...`; their outputs are in $out
# and $served.
pair() {
    local port=$1 status
    shift
    local server=()
    while [ "$1" != -- ]; do
        server+=("$1")
        shift
    done
    shift
    out=$work/out served=$work/served
    (on_server "${server[@]}") >"$served" 2>&1 &
    local job=$!
    await "it listens: ${server[*]}" "$served" listens "$port"
    (on_client "$@") >"$out" 2>&1 || fail "exit status $?: $*" "$out" "$served"
    wait $job
    status=$?
    [ $status = 0 ] || fail "exit status $status: ${server[*]}" "$served" "$out"
}

passed() {
    [ $checked -gt 0 ] || fail "nothing was checked"
    echo "$name: done, $checked checks"
}
