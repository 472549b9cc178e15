#!/usr/bin/env bash
# Every command under mpirun gives what it gives alone: the same standard output, once, and the same exit code.
set -u
cd "$(dirname "$0")/../.." || exit 1
potluck=${POTLUCK:-build/potluck}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# same NAME COMMAND...: stdin of both is $scratch/input
same() {
    local name=$1 one three
    shift
    "$potluck" "$@" <"$scratch/input" >"$scratch/one" 2>"$scratch/one.err"
    one=$?
    deploy/potluck-mpirun -n 3 "$potluck" "$@" <"$scratch/input" >"$scratch/three" 2>"$scratch/three.err"
    three=$?
    if [ "$one" -eq "$three" ] && cmp -s "$scratch/one" "$scratch/three"; then
        echo "ok    $name"
        return
    fi
    failures=$((failures + 1))
    echo "FAIL  $name: exit $one alone, $three under mpirun"
    diff "$scratch/one" "$scratch/three" | head -5
    head -20 "$scratch/three.err"
}

: >"$scratch/input"
same 'run, greedy' run demo --temp 0 -n 32 --quiet -p 'Once upon a time'
same 'run, sampled' run demo --temp 1 --seed 3 -n 32 --quiet -p 'Once upon a time'
same 'run, sliced map' run demo --temp 0 -n 32 --quiet --map sliced -p 'Once upon a time'
same 'run, no such model' run no/such/model -p x
same 'an unknown option' run demo --tempp 0 -p x
same 'eval ppl' eval ppl demo tests/fixtures/README.md --tokens 200 --window 100 --json --quiet
same 'version' version
same 'inspect' inspect demo
same 'config show' config show --json
printf 'Once upon a time' >"$scratch/input"
same 'run, prompt on stdin' run demo --temp 0 -n 32 --quiet
same 'tokenize' tokenize demo
printf 'Which city is the capital of Sweden?\nTell me the capital of Cuba.\n' >"$scratch/input"
same 'chat' chat demo --temp 0 --quiet
printf '{"messages": [{"role": "user", "content": "Hi"}]}\n' >"$scratch/input"
same 'template' template demo --jsonl

# Roles on different lines, with the workers' own path to the model.
: >"$scratch/input"
"$potluck" run demo --temp 0 -n 16 --quiet -p 'Once upon a time' >"$scratch/one"
ln -s "$PWD/demo" "$scratch/elsewhere"
deploy/potluck-mpirun -n 1 "$potluck" run demo --temp 0 -n 16 --quiet -p 'Once upon a time' : \
    -n 2 "$potluck" worker --model "$scratch/elsewhere" >"$scratch/three" 2>"$scratch/three.err"
if cmp -s "$scratch/one" "$scratch/three"; then
    echo 'ok    run and worker on separate lines'
else
    failures=$((failures + 1))
    echo 'FAIL  run and worker on separate lines'
    head -20 "$scratch/three.err"
fi

# The trace of every number, byte for byte.
input=tests/fixtures/indexshare/expected.safetensors
"$potluck" eval trace tests/fixtures/indexshare --quiet --input $input --greedy 8 --out "$scratch/trace1" &&
    deploy/potluck-mpirun -n 3 "$potluck" eval trace tests/fixtures/indexshare --quiet --input $input --greedy 8 --batch 2 \
        --out "$scratch/trace3"
if cmp "$scratch/trace1" "$scratch/trace3"; then
    echo 'ok    eval trace'
else
    failures=$((failures + 1))
    echo 'FAIL  eval trace'
fi

[ "$failures" -eq 0 ]
