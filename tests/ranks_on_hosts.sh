#!/bin/sh
# Two ranks on two hosts, each a network namespace with an address of its own, and a cable between
# them. A run of both must have the losses of one process. Then the cable is cut in the middle of a
# run: both ranks must end within the stated time, each with one line that names the other.
#
#   tests/ranks_on_hosts.sh WEFT       exit code 77: skipped, namespaces cannot be made here
set -eu
weft=$1
a=weft-a-$$
b=weft-b-$$
folder=$(mktemp -d)
cleanup() {
  ip netns del "$a" 2>/dev/null || true
  ip netns del "$b" 2>/dev/null || true
  rm -rf "$folder"
}
trap cleanup EXIT

fail() {
  echo "ranks_on_hosts: $1" >&2
  cat "$folder"/*.err >&2
  exit 1
}

if ! ip netns add "$a" 2>/dev/null || ! ip netns add "$b" 2>/dev/null ||
  ! ip link add cable netns "$a" type veth peer name cable netns "$b" 2>/dev/null; then
  echo "ranks_on_hosts: skipped: network namespaces cannot be made here (they need root and ip)"
  exit 77
fi
ip -n "$a" address add 10.77.0.1/24 dev cable
ip -n "$b" address add 10.77.0.2/24 dev cable
for host in "$a" "$b"; do
  ip -n "$host" link set cable up
  ip -n "$host" link set lo up
done

options="--model mlp --width 64 --batch 32 --train-images 500 --test-images 50 --threads 1
  --recipe static --optimizer sgd --plan sparse --rank-timeout 10 --checkpoint-every 10"
# rank HOST RANK STEPS OUT
rank() {
  RANK=$2 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 OMP_WAIT_POLICY=passive \
    exec ip netns exec "$1" "$weft" train $options --steps "$3" --out "$4" >"$folder/$2.out" 2>"$folder/$2.err"
}
losses() { sed -n 's/.*"loss":\([0-9.]*\).*/\1/p' "$1/metrics.jsonl"; }

rank "$a" 0 20 "$folder/two" & first=$!
rank "$b" 1 20 "$folder/elsewhere" 2>/dev/null & second=$!
if wait $first; then fail "ranks with other arguments (--out) were not refused"; fi
wait $second || true
grep -q 'rank 1 has --out' "$folder/0.err" || fail "the line does not name --out"

rank "$a" 0 20 "$folder/two" & first=$!
rank "$b" 1 20 "$folder/two" & second=$!
wait $first && wait $second || fail "a run on two hosts failed"
"$weft" train $options --steps 20 --out "$folder/one" >/dev/null
losses "$folder/one" >"$folder/one.losses"
losses "$folder/two" | paste "$folder/one.losses" - |
  awk '{ d = $1 - $2; if (d > 1e-4 || d < -1e-4) bad = 1; n++ } END { exit bad || n != 20 }' ||
  fail "the losses of two hosts are not those of one process"

rank "$a" 0 1000000 "$folder/cut" & first=$!
rank "$b" 1 1000000 "$folder/cut" & second=$!
tries=0
until [ -e "$folder/cut/checkpoints/step-000000020.safetensors" ]; do
  tries=$((tries + 1))
  [ $tries -lt 600 ] || fail "the run does not begin"
  sleep 0.1
done
begin=$(date +%s)
ip -n "$b" link set cable down
if wait $first; then fail "rank 0 did not notice that the cable is cut"; fi
if wait $second; then fail "rank 1 did not notice that the cable is cut"; fi
took=$(($(date +%s) - begin))
[ $took -le 20 ] || fail "it took $took s, not 20"
grep -q '^weft: rank 0 of 2: .*rank 1' "$folder/0.err" || fail "rank 0 does not name rank 1"
grep -q '^weft: rank 1 of 2: .*rank 0' "$folder/1.err" || fail "rank 1 does not name rank 0"
[ "$(wc -l <"$folder/0.err")" -eq 1 ] && [ "$(wc -l <"$folder/1.err")" -eq 1 ] || fail "not one line each"
echo "ranks_on_hosts: two hosts train as one process; a cut cable ends both ranks in $took s"
