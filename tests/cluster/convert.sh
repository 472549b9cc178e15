#!/usr/bin/env bash
# potluck convert as a process: killed at random moments it goes on to the same files, a disk that is full is said and survived, one at a time, and
# what verify says about a flipped bit; a reader of forty lines finds the weights.
# shellcheck source=tests/cluster/common.bash
. "$(dirname "$0")/common.bash"

source=random:tiny,layers=12
packed=$scratch/packed
reference=$scratch/reference
mounted=''
unmount() {
    [ -z "$mounted" ] || umount "$mounted" 2>/dev/null
    mounted=''
}
trap 'unmount; clean_up' EXIT

# refused NAME STATUS WORDS COMMAND...: ends with that status and says these words
refused() {
    local name=$1 expected=$2 words=$3 status
    shift 3
    "$@" >"$scratch/out" 2>"$scratch/err"
    status=$?
    if [ "$status" -eq "$expected" ] && grep -qF -- "$words" "$scratch/err"; then
        ok "$name"
    else
        bad "$name: exit $status, $expected was expected with: $words"
        head -5 "$scratch/err"
    fi
}

same() { # NAME: packed is what the reference is
    if diff -r "$reference" "$packed" >"$scratch/diff" 2>&1; then
        ok "$1"
    else
        bad "$1: the files differ"
        head -5 "$scratch/diff"
    fi
}

begin=$(now_ms)
"$potluck" convert "$source" "$reference" --quiet || bad 'convert'
whole=$(($(now_ms) - begin))

# ---- killed -----------------------------------------------------------------------------------------------------------
RANDOM=7
killed=0 differ=0
for round in $(seq 20); do
    rm -rf "$packed"
    wait_ms=$((RANDOM % (whole + 1)))
    "$potluck" convert "$source" "$packed" --quiet 2>/dev/null &
    pid=$!
    sleep "$(printf '%d.%03d' $((wait_ms / 1000)) $((wait_ms % 1000)))"
    kill -KILL "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    [ $? -eq 137 ] && killed=$((killed + 1))
    # One that had ended in time is finished, which is a refusal.
    if [ ! -e "$packed/potluck.json" ] || [ -e "$packed/convert.json" ]; then
        "$potluck" convert "$source" "$packed" --quiet 2>"$scratch/err" || head -3 "$scratch/err"
    fi
    diff -r -x convert.lock "$reference" "$packed" >/dev/null 2>&1 || {
        differ=$((differ + 1))
        echo "round $round: killed after $wait_ms of $whole ms"
    }
done
if [ "$differ" -eq 0 ] && [ "$killed" -ge 10 ]; then
    ok "killed $killed times in 20, gone on to the same files"
else
    bad "killed $killed times in 20, $differ conversions have other files"
fi

# Again and again, until it is through.
rm -rf "$packed"
for round in $(seq 30); do
    "$potluck" convert "$source" "$packed" --quiet 2>/dev/null &
    pid=$!
    sleep "0.$(printf '%03d' $((20 + RANDOM % 80)))"
    kill -KILL "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    [ -e "$packed/potluck.json" ] && [ ! -e "$packed/convert.json" ] && break
done
[ -e "$packed/potluck.json" ] && [ ! -e "$packed/convert.json" ] || "$potluck" convert "$source" "$packed" --quiet
rm -f "$packed/convert.lock" # of one that was killed after its last word
same 'killed many times in one conversion'

# ---- stopped, and two at a time -----------------------------------------------------------------------------------------
refused 'a finished container' 2 'is a finished container, which is never overwritten' \
    "$potluck" convert "$source" "$packed" --quiet
same 'a finished container is as it was'

rm -rf "$packed"
set -m
"$potluck" convert "$source" "$packed" --quiet 2>"$scratch/stopped" &
launcher=$!
set +m
until_true 30 test -e "$packed/dense-001.safetensors"
kill -STOP "$launcher"
refused 'two at a time' 2 'another potluck is converting to this directory' \
    "$potluck" convert "$source" "$packed" --quiet
kill -INT "$launcher"
kill -CONT "$launcher"
wait "$launcher"
status=$?
launcher=''
if [ "$status" -eq 130 ] && grep -q 'files are finished, the same command goes on from there' "$scratch/stopped"; then
    ok 'interrupted, with a hint'
else
    bad "interrupted: exit $status"
    cat "$scratch/stopped"
fi
"$potluck" convert "$source" "$packed" --quiet || bad 'going on after an interrupt'
same 'gone on after an interrupt'

# ---- a full disk --------------------------------------------------------------------------------------------------------
rm -rf "$packed"
largest=$(stat -c %s "$reference/experts-000.safetensors")
# The limit is below the largest file; ulimit counts in KiB.
refused 'a file that may not grow' 1 'File too large' \
    bash -c "ulimit -f $((largest / 2048)); exec '$potluck' convert '$source' '$packed' --quiet"
if compgen -G "$packed/*.partial" >/dev/null; then bad 'half a file was left'; else ok 'no half file is left'; fi
"$potluck" convert "$source" "$packed" --quiet || bad 'going on with room'
same 'gone on when there was room'

mkdir "$scratch/small"
if [ "$(id -u)" -eq 0 ] && mount -t tmpfs -o size=24m tmpfs "$scratch/small" 2>/dev/null; then
    mounted=$scratch/small
    total=$(du -sk "$reference" | cut -f1)
    refused 'a disk that is too small is seen before' 1 'are still to be written, the disk has' \
        "$potluck" convert demo "$mounted/demo" --experts f32 --quiet
    if [ -e "$mounted/demo" ]; then bad 'a directory was left'; else ok 'nothing was written'; fi
    # Filled by somebody else meanwhile.
    mount -o remount,size=$((total + 20 * 1024))k "$mounted"
    set -m
    "$potluck" convert "$source" "$mounted/packed" --quiet 2>"$scratch/err" &
    launcher=$!
    set +m
    until_true 30 test -e "$mounted/packed/dense-002.safetensors"
    kill -STOP "$launcher"
    dd if=/dev/zero of="$mounted/filler" bs=64k 2>/dev/null
    kill -CONT "$launcher"
    wait "$launcher"
    status=$?
    launcher=''
    if [ "$status" -eq 1 ] && grep -q 'No space left on device' "$scratch/err"; then
        ok 'a disk that filled up is said'
    else
        bad "a disk that filled up: exit $status"
        cat "$scratch/err"
    fi
    rm "$mounted/filler"
    "$potluck" convert "$source" "$mounted/packed" --quiet || bad 'going on after the disk was full'
    rm -rf "$packed"
    cp -r "$mounted/packed" "$packed"
    same 'gone on after the disk was full'
    unmount
else
    echo 'skip  full disks: only root can mount one'
fi

# ---- verify -------------------------------------------------------------------------------------------------------------
"$potluck" verify "$packed" >/dev/null || bad 'verify of what is whole'
size=$(stat -c %s "$packed/experts-007.safetensors")
at=$((size / 2))
byte=$(od -An -tu1 -j "$at" -N 1 "$packed/experts-007.safetensors")
# shellcheck disable=SC2059 # the format is the byte
printf "\\$(printf '%03o' $((byte ^ 4)))" | dd of="$packed/experts-007.safetensors" bs=1 seek="$at" conv=notrunc 2>/dev/null
"$potluck" verify "$packed" >"$scratch/out" 2>"$scratch/err"
status=$?
if [ "$status" -eq 1 ] && [ "$(wc -l <"$scratch/out")" -eq 1 ] &&
    grep -Eq '^damaged: experts-007.safetensors, tensor model.layers.7.mlp.experts.[0-9]+.chunks, chunk [0-9]+$' "$scratch/out"; then
    ok 'a flipped bit is named'
else
    bad "a flipped bit: exit $status"
    cat "$scratch/out" "$scratch/err"
fi

# ---- a reader by the documentation -----------------------------------------------------------------------------------------
if command -v python3 >/dev/null; then
    "$potluck" convert tests/fixtures/mxfp4 "$scratch/mxfp4" --quiet
    "$potluck" convert tests/fixtures/eps "$scratch/q4g64" --experts q4g64 --quiet
    for pair in mxfp4:mxfp4 q4g64:eps; do
        if python3 tests/read_container.py "$scratch/${pair%:*}" "tests/fixtures/${pair#*:}"; then
            ok "${pair%:*}, read by docs/formats.md"
        else
            bad "${pair%:*}, read by docs/formats.md"
        fi
    done
else
    echo 'skip  there is no python3'
fi

[ "$failures" -eq 0 ]
