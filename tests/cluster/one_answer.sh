#!/usr/bin/env bash
# One answer over real processes: `eval trace` (logits, hidden states, choices, drafts, greedy tokens) gives the same file, byte for
# byte, on 1 to 8 ranks as in one process: each factor varied alone, then seeded combinations of all of them.
# shellcheck source=tests/cluster/common.bash
. "$(dirname "$0")/common.bash"

# trace NAME OUT RANKS ARGUMENTS...: 0 ranks = without mpirun
trace() {
    local name=$1 out=$2 n=$3 run=()
    shift 3
    [ "$n" -eq 0 ] || run=("${mpirun[@]}" -n "$n")
    timeout 120 ${run[@]+"${run[@]}"} "$potluck" eval trace "${model[$name]}" --input "$scratch/$name.input" --greedy 6 --quiet \
        --out "$out" "$@" >"$scratch/log" 2>&1 </dev/null
}

# same NAME RANKS ARGUMENTS...: against the truth of the same --kv
same() {
    local name=$1 n=$2 kv=bf16
    [[ " $* " == *' --kv f32 '* ]] && kv=f32
    rm -f "$scratch/got"
    trace "$name" "$scratch/got" "${@:2}"
    local status=$?
    runs=$((runs + 1))
    if [ "$status" -ne 0 ]; then
        bad "$name on $n ranks ${*:3}: status $status"
        tail -5 "$scratch/log"
    elif ! cmp -s "$scratch/$name.$kv" "$scratch/got"; then
        bad "$name on $n ranks ${*:3}: other bytes than one process"
    fi
}

declare -A model=([demo]=demo [experts256]=$scratch/experts256 [wide544]=$scratch/wide544)
for name in experts256 wide544; do
    "$build/tests/make_tiny_model" $name "$scratch/$name" || exit 1
done
"$build/tests/make_tiny_model" prompt 40 2048 "$scratch/demo.input" || exit 1
"$build/tests/make_tiny_model" prompt 20 200 "$scratch/experts256.input" || exit 1
"$build/tests/make_tiny_model" prompt 20 144 "$scratch/wide544.input" || exit 1

maps=(contiguous round-robin sliced random:7)
for name in demo experts256 wide544; do
    runs=0 before=$failures
    if ! trace $name "$scratch/$name.bf16" 0 || ! trace $name "$scratch/$name.f32" 0 --kv f32; then
        bad "$name in one process"
        cat "$scratch/log"
        continue
    fi
    cmp -s "$scratch/$name.bf16" "$scratch/$name.f32" && bad "$name: --kv makes no difference"
    for n in 1 2 3 4 5 6 7 8; do same $name $n; done
    for map in "${maps[@]:1}"; do same $name 3 --map "$map"; done
    for batch in 2 7 32; do same $name 2 --batch $batch; done
    for tile in 1 3; do same $name 2 --prefill-tile $tile; done
    for threads in 1 2 3 4; do same $name 2 --threads $threads; done
    for kernels in generic auto; do same $name 2 --kernels $kernels; done
    same $name 2 --kv f32
    [ "$failures" -eq "$before" ] && ok "$name: $runs clusters that differ in one thing"
done

RANDOM=20
before=$failures runs=0
pick() { echo "${@:$((RANDOM % $# + 1)):1}"; }
for _ in {1..20}; do
    same "$(pick demo experts256 wide544)" $((RANDOM % 8 + 1)) --map "$(pick contiguous round-robin sliced random:$RANDOM)" \
        --batch "$(pick 1 2 7 32)" --prefill-tile "$(pick 1 3 64)" --threads "$(pick 1 2 3)" --kernels "$(pick generic auto)" \
        --kv "$(pick bf16 f32)"
done
[ "$failures" -eq "$before" ] && ok "$runs random combinations"

# Ranks that compute with different instruction sets.
if timeout 120 "${mpirun[@]}" -n 1 "$potluck" eval trace demo --input "$scratch/demo.input" --greedy 6 --quiet --map sliced \
    --out "$scratch/got" : -n 1 "$potluck" worker --kernels generic : -n 1 "$potluck" worker --kernels auto \
    >"$scratch/log" 2>&1 </dev/null && cmp -s "$scratch/demo.bf16" "$scratch/got"; then
    ok 'ranks with different kernels'
else
    bad 'ranks with different kernels'
    tail -5 "$scratch/log"
fi

[ "$failures" -eq 0 ]
