#!/usr/bin/env bash
# Models larger than their budgets over real processes: the same trace, byte for byte, from a converted model in one process and in clusters of ranks
# with different budgets, policies and ways of reading; `potluck status` sees them; what cannot be is said.
# shellcheck source=tests/cluster/common.bash
. "$(dirname "$0")/common.bash"
export XDG_CACHE_HOME=$scratch/cache XDG_RUNTIME_DIR=$scratch/run
mkdir -m 700 "$scratch/cache" "$scratch/run"

"$build/tests/make_tiny_model" wide544 "$scratch/wide544" || exit 1
declare -A source=([demo]=demo [wide544]=$scratch/wide544)
"$build/tests/make_tiny_model" prompt 30 2048 "$scratch/demo.input" || exit 1
"$build/tests/make_tiny_model" prompt 20 144 "$scratch/wide544.input" || exit 1

# trace NAME OUT COMMAND...
trace() {
    local name=$1 out=$2
    shift 2
    rm -f "$out"
    timeout 120 "$@" --input "$scratch/$name.input" --greedy 5 --quiet --out "$out" >"$scratch/log" 2>&1 </dev/null
}

# same WHAT NAME COMMAND...
same() {
    local what=$1 name=$2
    shift 2
    if ! trace "$name" "$scratch/got" "$@"; then
        bad "$what: $(tail -3 "$scratch/log")"
    elif cmp -s "$scratch/$name.truth" "$scratch/got"; then
        ok "$what"
    else
        bad "$what: other bytes than the checkpoint in memory"
    fi
}

for name in demo wide544; do
    packed=$scratch/$name-packed
    trace $name "$scratch/$name.truth" "$potluck" eval trace "${source[$name]}" || exit 1
    "$potluck" convert "${source[$name]}" "$packed" --quiet >"$scratch/log" 2>&1 || {
        bad "$name: convert: $(tail -3 "$scratch/log")"
        exit 1
    }
    same "$name: everything in memory" $name "$potluck" eval trace "$packed"
    same "$name: 2 MiB, pool" $name "$potluck" eval trace "$packed" --ram 2MiB --read-engine pool --cache lru --threads 2
    same "$name: 1.5 MiB, through the page cache" $name "$potluck" eval trace "$packed" --ram 1.5MiB --read-path cached --cache gdsf
    same "$name: 3 ranks, 1.5 MiB each" $name "${mpirun[@]}" -n 3 "$potluck" eval trace "$packed" --ram 1.5MiB --map sliced
    same "$name: 3 ranks, reading ahead" $name "${mpirun[@]}" -n 3 "$potluck" eval trace "$packed" --ram 1.5MiB --map round-robin --prefetch
    same "$name: --disk-cache, twice" $name "${mpirun[@]}" -n 2 "$potluck" eval trace "${source[$name]}" --ram 2MiB --disk-cache "$scratch/copy"
    same "$name: --disk-cache again" $name "${mpirun[@]}" -n 2 "$potluck" eval trace "${source[$name]}" --ram 2MiB --disk-cache "$scratch/copy"
done

# Ranks with budgets of their own; a worker whose disk has its experts only.
packed=$scratch/demo-packed part=$scratch/part
mkdir "$part"
cp "$packed"/*.json "$packed"/experts-*.safetensors "$part"
rm -f "$scratch/got"
if timeout 120 "${mpirun[@]}" -n 1 "$potluck" eval trace "$packed" --ram 4MiB --input "$scratch/demo.input" --greedy 5 --quiet --out "$scratch/got" : \
    -n 1 "$potluck" worker --ram 1.5MiB --cache slru --model "$part" : \
    -n 1 "$potluck" worker --model "$packed" >"$scratch/log" 2>&1 </dev/null && cmp -s "$scratch/demo.truth" "$scratch/got"; then
    ok 'three ranks, three budgets, one without dense files'
else
    bad "three ranks, three budgets: $(tail -3 "$scratch/log")"
fi

# Which experts were used is remembered, and status sees a process that runs.
[ -n "$(ls "$XDG_CACHE_HOME"/potluck/usage-*.txt 2>/dev/null)" ] && ok 'usage is remembered' || bad 'no usage file was written'
mkfifo "$scratch/fifo.in"
sleep 30 >"$scratch/fifo.in" &
ranks=($!)
"$potluck" chat "$packed" --ram 2MiB <"$scratch/fifo.in" >"$scratch/chat" 2>&1 &
launcher=$!
seen() { "$potluck" status 2>/dev/null | grep -q "$packed\|demo-packed"; }
if until_true 20 seen; then
    ok 'status sees a process that runs'
    "$potluck" status --json | python3 -m json.tool >"$scratch/log" 2>&1 && ok 'status --json is JSON' || bad "status --json: $(tail -2 "$scratch/log")"
else
    bad "status: $("$potluck" status 2>&1 | tail -5)"
fi
kill -TERM "$launcher" 2>/dev/null
wait "$launcher" 2>/dev/null
launcher=

# says SENTENCE COMMAND...: fails, and says so
says() {
    local sentence=$1
    shift
    if "$@" >"$scratch/log" 2>&1 </dev/null; then
        bad "succeeded: $*"
    elif grep -q -- "$sentence" "$scratch/log"; then
        ok "says: $sentence"
    else
        bad "does not say '$sentence': $(tail -2 "$scratch/log")"
    fi
}
says 'are too little' "$potluck" run "$packed" -p x -n 1 --ram 64KiB
says 'potluck convert' "$potluck" run demo -p x -n 1 --ram 1MiB
says 'was converted with' "$potluck" run "$packed" -p x -n 1 --experts q4g64
says 'give the checkpoint' "$potluck" run "$packed" -p x -n 1 --reference
if [ "$("$potluck" version | grep -c 'CUDA.*none\|no CUDA\|without CUDA')" -gt 0 ]; then
    says '--vram asks for' "$potluck" run "$packed" -p x -n 1 --vram 1GiB
fi
printf 'x' | dd of="$packed/experts-002.safetensors" bs=1 seek=500000 conv=notrunc status=none
says 'experts-002.safetensors' "$potluck" run "$packed" -p 'Once upon a time' -n 8 --usage off
says 'experts-002.safetensors' "$potluck" verify "$packed"

[ "$failures" -eq 0 ]
