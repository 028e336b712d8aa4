# Crates of crates.io: the examples that come with jonhoo's ibverbs and with sideway, built as they are. CACHE names a
# folder to build in.
. "$(dirname "$0")/lib.sh"

cache=${CACHE:-$work}/crates
mkdir -p "$cache/src/bin"
cp "$here"/crates/Cargo.* "$cache"
echo 'fn main() {}' >"$cache/src/main.rs"
export CARGO_TARGET_DIR=$cache/target RUSTFLAGS="-L native=$stage/lib"
(cd "$cache" && cargo fetch --locked) >"$work/fetch" 2>&1 || fail "cannot fetch the crates" "$work/fetch"
manifests=$(cd "$cache" && cargo metadata --format-version 1 2>/dev/null | grep -oE '"[^"]*/(ibverbs|sideway)-[0-9.]*/Cargo.toml"' |
    sort -u | tr -d '"')
for manifest in $manifests; do
    for example in loopback rc_pingpong rc_pingpong_split; do
        from=$(dirname "$manifest")/examples/$example.rs to=$cache/src/bin/$example.rs
        # What has not changed is not built again.
        [ ! -f "$from" ] || cmp -s "$from" "$to" || cp "$from" "$to"
    done
done
(cd "$cache" && cargo build --quiet) >"$work/build" 2>&1 || fail "the examples do not build" "$work/build"
bin=$cache/target/debug

alone "$bin/loopback"
says "$out" '^sent$' '^received$'
for pingpong in rc_pingpong rc_pingpong_split; do
    for size in 1024 65536; do
        pair 18870 "$bin/$pingpong" -p 18870 -s $size -n 200 -- "$bin/$pingpong" -p 18870 -s $size -n 200 "$host"
        says "$out" 'iters in'
        says "$served" 'iters in'
    done
done
passed
