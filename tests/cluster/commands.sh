#!/usr/bin/env bash
# Every command under mpirun gives what it gives alone: the same standard output, once, and the same exit code.
# shellcheck source=tests/cluster/common.bash
. "$(dirname "$0")/common.bash"

# same NAME COMMAND...: alone, on one rank and on three; standard input of all is $scratch/input
same() {
    local name=$1 n expected status
    shift
    "$potluck" "$@" <"$scratch/input" >"$scratch/alone" 2>/dev/null
    expected=$?
    for n in 1 3; do
        timeout 120 deploy/potluck-mpirun -n "$n" "$potluck" "$@" <"$scratch/input" >"$scratch/got" 2>"$scratch/err"
        status=$?
        if [ "$status" -eq "$expected" ] && cmp -s "$scratch/alone" "$scratch/got"; then
            ok "$name, -n $n"
        else
            bad "$name, -n $n: exit $status, alone $expected"
            diff "$scratch/alone" "$scratch/got" | head -5
            head -20 "$scratch/err"
        fi
    done
}

: >"$scratch/input"
same 'run, greedy' run demo --temp 0 -n 32 --quiet -p 'Once upon a time'
same 'run, sampled' run demo --temp 1 --seed 3 -n 32 --quiet -p 'Once upon a time'
same 'run, sliced map' run demo --temp 0 -n 32 --quiet --map sliced -p 'Once upon a time'
same 'run, no such model' run no/such/model -p x
same 'an unknown option' run demo --tempp 0 -p x
same 'eval ppl' eval ppl demo tests/fixtures/README.md --tokens 200 --window 100 --json --quiet --against reference
same 'version' version
same 'inspect' inspect demo
same 'config show' config show --json
same 'help' help
printf 'Once upon a time' >"$scratch/input"
same 'run, prompt on stdin' run demo --temp 0 -n 32 --quiet
same 'tokenize' tokenize demo
printf 'Which city is the capital of Sweden?\nTell me the capital of Cuba.\n' >"$scratch/input"
same 'chat' chat demo --temp 0 --quiet
same 'chat, thinking' chat demo --temp 0 --quiet --think
printf '{"messages": [{"role": "user", "content": "Hi"}]}\n' >"$scratch/input"
same 'template' template demo --jsonl

# Roles on different lines, with the workers' own path to the model.
"$potluck" run demo --temp 0 -n 16 --quiet -p 'Once upon a time' >"$scratch/alone"
ln -s "$PWD/demo" "$scratch/elsewhere"
timeout 120 deploy/potluck-mpirun -n 1 "$potluck" run demo --temp 0 -n 16 --quiet -p 'Once upon a time' : \
    -n 2 "$potluck" worker --model "$scratch/elsewhere" >"$scratch/got" 2>"$scratch/err" </dev/null
if cmp -s "$scratch/alone" "$scratch/got"; then
    ok 'run and worker on separate lines'
else
    bad 'run and worker on separate lines'
    head -20 "$scratch/err"
fi

[ "$failures" -eq 0 ]
