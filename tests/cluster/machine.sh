#!/usr/bin/env bash
# `potluck doctor` and `potluck bench machine`: what they print can be read by people, by JSON and by `plan`; alone and under mpirun.
# shellcheck source=tests/cluster/common.bash
. "$(dirname "$0")/common.bash"

# json FILE EXPRESSION: whether the Python expression on `d` holds
json() { python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); sys.exit(not eval(sys.argv[2]))' "$1" "$2"; }

check() { # check NAME COMMAND...
    local name=$1
    shift
    if "$@" >"$scratch/check" 2>&1; then
        ok "$name"
    else
        bad "$name"
        head -5 "$scratch/check"
        head -20 "$scratch/out" "$scratch/err" 2>/dev/null
    fi
}

export XDG_CACHE_HOME=$scratch/cache # scratch files lie there
mkdir "$XDG_CACHE_HOME"

# ---- doctor ----

"$potluck" doctor demo --quick >"$scratch/out" 2>"$scratch/err"
status=$?
lines_are_marked() { ! grep -vE '^(good|note|bad )  [A-Za-z/]|^ {20}-> |^$|^[0-9]+ good, [0-9]+ notes, [0-9]+ bad$' "$scratch/out"; }
check 'doctor: every line has a mark or an advice' lines_are_marked
for topic in cores binding 'CPU quota' kernels memory 'huge pages' swap memlock 'open files' /dev/shm 'RAM rate' compute io_uring disk \
    'disk rate' UCX MPI GPU model fits tokenizer template; do
    check "doctor says something about: $topic" grep -qE "^(good|note|bad )  $topic " "$scratch/out"
done
n_bad=$(grep -c '^bad ' "$scratch/out")
check "doctor: exit status $status with $n_bad bad" [ "$status" -eq $((n_bad > 0)) ]

"$potluck" doctor demo --quick --json >"$scratch/json" 2>/dev/null
check 'doctor --json is JSON' json "$scratch/json" 'len(d["checks"]) == d["good"] + d["notes"] + d["bad"] >= 20'
check 'doctor --json has the marks' json "$scratch/json" \
    'all(c["mark"] in ("good", "note", "bad") and c["topic"] and c["found"] and "advice" in c for c in d["checks"])'

"$potluck" doctor no/such/model --quick >"$scratch/out" 2>"$scratch/err"
check 'doctor of a model that is not there ends with 1' [ $? -eq 1 ]
check 'doctor says so' grep -q '^bad   model .*no/such/model' "$scratch/out"

mkdir "$scratch/model" # everything but the tokenizer
ln -s "$PWD"/demo/* "$scratch/model"
rm "$scratch/model/tokenizer.json"
"$potluck" doctor "$scratch/model" --quick >"$scratch/out" 2>"$scratch/err"
check 'doctor of a model without tokenizer ends with 1' [ $? -eq 1 ]
check 'doctor names the missing tokenizer' grep -q '^bad   tokenizer .*tokenizer.json' "$scratch/out"

(
    ulimit -n 300
    "$potluck" doctor --quick >"$scratch/out" 2>"$scratch/err"
)
check 'doctor finds too few descriptors' grep -q '^bad   open files' "$scratch/out"
taskset -c 0 "$potluck" doctor --quick >"$scratch/out" 2>"$scratch/err"
[ "$(nproc)" -eq 1 ] || check 'doctor finds a binding' grep -q '^note  binding .* 1 of' "$scratch/out"
UCX_TLS=self "$potluck" doctor --quick >"$scratch/out" 2>"$scratch/err"
check 'doctor finds UCX without a way out' grep -q '^bad   transports' "$scratch/out"

"$potluck" doctor demo more >"$scratch/out" 2>"$scratch/err"
check 'doctor takes one model' [ $? -eq 2 ]
check 'doctor says what is too much' grep -q 'unexpected argument' "$scratch/err"

# ---- bench machine ----

"$potluck" bench machine --quick --quiet -o "$scratch/one.ini" >"$scratch/out" 2>"$scratch/err"
check 'bench machine ends well' [ $? -eq 0 ]
check 'bench machine prints a table' grep -qE '^  RAM +[0-9.]+ +[0-9.]+ +[0-9.]+  GB/s' "$scratch/out"
for key in version note host cores isa ram ram_rate disk disk_rate dense_rate operations disk_rate_2MiB; do
    check "the file has $key" grep -qE "^$key = [^ ]" "$scratch/one.ini"
done
check 'plan reads the file' "$potluck" plan demo --cluster "$scratch/one.ini"
check 'no scratch file is left' [ -z "$(find "$XDG_CACHE_HOME" -type f)" ]

"$potluck" bench machine --quick --json >"$scratch/json" 2>/dev/null
check 'bench machine --json' json "$scratch/json" \
    'len(d["workers"]) == 1 and d["workers"][0]["ram_bytes_per_s"] > 1e8 and len(d["workers"][0]["disk_reads"]) == 6'

"$potluck" bench machine no/such/place --quick >"$scratch/out" 2>"$scratch/err"
check 'bench machine: no such place' [ $? -eq 1 ]
check 'bench machine names the place' grep -q 'no/such/place' "$scratch/err"

timeout 240 deploy/potluck-mpirun -n 3 "$potluck" bench machine --quick -o "$scratch/three.ini" >"$scratch/out" 2>"$scratch/err"
check 'bench machine on three ranks' [ $? -eq 0 ]
check 'three workers' [ "$(grep -c '^\[worker' "$scratch/three.ini")" -eq 3 ]
check 'two links' [ "$(grep -c '^link_latency = [0-9.]*[mu]s' "$scratch/three.ini")" -eq 2 ]
check 'plan reads that file' "$potluck" plan demo --cluster "$scratch/three.ini"
timeout 240 deploy/potluck-mpirun -n 2 "$potluck" bench machine no/such/place --quick >"$scratch/out" 2>"$scratch/err"
check 'a fault on two ranks ends both' [ $? -eq 1 ]

[ "$failures" -eq 0 ]
