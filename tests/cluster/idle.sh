#!/usr/bin/env bash
# A cluster that waits for its user sleeps: under 2% of a core each rank.  And more ranks than cores are slower than one, but do
# not collapse: those times are only reported.
# shellcheck source=tests/cluster/common.bash
. "$(dirname "$0")/common.bash"
seconds=5

# ticks PID: CPU time of the process so far, in clock ticks
ticks() { sed 's/.*) //' "/proc/$1/stat" | awk '{ print $12 + $13 }'; }

mkfifo "$scratch/questions"
exec 7<>"$scratch/questions"
start 4 "$potluck" chat demo --temp 0 --quiet <"$scratch/questions" 7>&-
echo 'Tell me the capital of Cuba.' >&7
if ! until_true 60 grep -q Havana "$scratch/out"; then
    bad 'the chat did not start'
    cat "$scratch/out" "$scratch/err"
    exit 1
fi
sleep 1
declare -a before
for rank in "${!ranks[@]}"; do before[rank]=$(ticks "${ranks[rank]}"); done
sleep $seconds
hz=$(getconf CLK_TCK)
for rank in "${!ranks[@]}"; do
    percent=$(awk -v t=$(($(ticks "${ranks[rank]}") - before[rank])) -v hz="$hz" -v s=$seconds 'BEGIN { printf "%.2f", 100 * t / hz / s }')
    if awk -v p="$percent" 'BEGIN { exit !(p < 2) }'; then
        ok "rank $rank waits at $percent% of a core"
    else
        bad "rank $rank waits at $percent% of a core"
    fi
done

mpirun_ended() { ! alive "$launcher"; }
# The end of the input ends the program and all ranks.
exec 7>&-
if until_true 20 mpirun_ended && wait "$launcher"; then
    ok 'end of input ends all ranks'
else
    bad "end of input does not end all ranks in order"
    cat "$scratch/err"
fi
launcher=''

for n in 1 2 4 8; do
    begin=$(now_ms)
    if "${mpirun[@]}" -n $n "$potluck" run demo -p 'Once upon a time' --temp 0 -n 64 --ignore-eos --json --log warn >"$scratch/out" 2>"$scratch/err" </dev/null
    then
        echo "      $n ranks on $(nproc) cores: $(($(now_ms) - begin)) ms in all; $(grep -o '"decode": {[^}]*tokens_per_s": [0-9.]*' "$scratch/err")"
    else
        bad "run on $n ranks"
        tail -5 "$scratch/err"
    fi
done

[ "$failures" -eq 0 ]
