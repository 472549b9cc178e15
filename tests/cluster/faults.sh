#!/usr/bin/env bash
# Whatever happens to one rank in the middle of a run, all of them are gone soon after, mpirun's status says that it went wrong, and
# somebody names the rank.  Five seconds is what the program promises; the limit here leaves room for a loaded machine.
# shellcheck source=tests/cluster/common.bash
. "$(dirname "$0")/common.bash"
limit_s=20

# generation N: a long text on N ranks, slow enough to last; returns once text is coming out
generation() {
    start "$1" "$potluck" run demo -p 'Once upon a time' --temp 0 --ignore-eos -n 4000 --ctx 4096 --reference --kernels generic --log warn </dev/null &&
        until_true 60 test -s "$scratch/out"
}

# expect NAME SENTENCE VICTIM SIGNAL: a run of four ranks; VICTIM is a rank or `mpirun`
expect() {
    local name=$1 sentence=$2 victim=$3 signal=$4 pid status begin took
    if ! generation 4; then
        bad "$name: the run did not start"
        tail -5 "$scratch/err"
        return
    fi
    pid=$launcher
    [ "$victim" = mpirun ] || pid=${ranks[victim]}
    begin=$(now_ms)
    kill -"$signal" "$pid"
    if ! until_true $limit_s all_gone; then
        bad "$name: after $limit_s s there are still processes:$(who_is_left)"
        clean_ranks
        return
    fi
    took=$(($(now_ms) - begin))
    wait "$launcher"
    status=$?
    launcher=''
    if [ "$status" -eq 0 ]; then
        bad "$name: exit status 0"
    elif ! grep -Eq "$sentence" "$scratch/err"; then
        bad "$name: nobody says \`$sentence\`"
        tail -20 "$scratch/err"
    else
        ok "$name: all gone after $took ms, status $status: $(grep -Em1 "$sentence" "$scratch/err" | cut -c1-120)"
    fi
}

who_is_left() {
    local rank
    alive "$launcher" && printf ' mpirun'
    for rank in "${!ranks[@]}"; do
        alive "${ranks[rank]}" && printf ' rank %s (%s)' "$rank" "${ranks[rank]}"
    done
}
all_gone() { [ -z "$(who_is_left)" ]; }
clean_ranks() {
    local pid
    for pid in "$launcher" "${ranks[@]}"; do kill -KILL "$pid" 2>/dev/null; done
    wait "$launcher" 2>/dev/null
    launcher=''
}

expect 'a worker is killed' '([Rr]ank|worker) 2' 2 KILL
expect 'a worker hangs' '([Rr]ank|worker) 3' 3 STOP
expect 'the coordinator is killed' '([Rr]ank 0|coordinator)' 0 KILL
expect 'the coordinator hangs' '([Rr]ank 0|coordinator)' 0 STOP
expect 'a worker is asked to end' '([Rr]ank|worker) 1' 1 TERM
expect 'the coordinator is asked to end' 'rank 0: stopped' 0 TERM
expect 'the coordinator is interrupted' 'rank 0: stopped' 0 INT
expect 'mpirun is interrupted' '.' mpirun INT
expect 'mpirun is asked to end' '.' mpirun TERM

[ "$failures" -eq 0 ]
