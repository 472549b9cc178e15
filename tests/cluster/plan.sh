#!/usr/bin/env bash
# `potluck plan`: its figures add up, more memory never makes it slower, budgets that cannot work are said with numbers.
# `potluck status`: live processes with what they tell, no dead ones, and files that are none.
# shellcheck source=tests/cluster/common.bash
. "$(dirname "$0")/common.bash"

# Nothing that other runs left may count.
export XDG_CACHE_HOME=$scratch/cache XDG_RUNTIME_DIR=$scratch/session
mkdir -p "$XDG_CACHE_HOME" "$XDG_RUNTIME_DIR"
chmod 700 "$XDG_RUNTIME_DIR"

# check NAME PYTHON: an expression over p (the plan in $scratch/out) and q (the one in $scratch/before)
check() {
    if python3 - "$scratch/out" "$scratch/before" "$2" <<'END'; then ok "$1"; else bad "$1: $(head -c 300 "$scratch/out")"; fi
import json, os, sys
p = json.load(open(sys.argv[1]))
q = json.load(open(sys.argv[2])) if os.path.getsize(sys.argv[2]) else None
near = lambda a, b, part=1e-3: abs(a - b) <= part * max(abs(a), abs(b)) + 2
sys.exit(not eval("(" + sys.argv[3] + ")", {"p": p, "q": q, "near": near, "tiers": ("vram", "ram", "disk")}))
END
}

# plan ARGUMENTS...: keeps the plan before
plan() {
    cp "$scratch/out" "$scratch/before" 2>/dev/null || : >"$scratch/before"
    "$potluck" plan "$@" --json >"$scratch/out" 2>"$scratch/err" || bad "plan $*: $(cat "$scratch/err")"
}

# refused WORDS ARGUMENTS...: exit 1 and these words
refused() {
    local words=$1
    shift
    "$potluck" plan "$@" >"$scratch/text" 2>"$scratch/err"
    if [ $? -eq 1 ] && grep -qE "$words" "$scratch/err" && [ ! -s "$scratch/text" ]; then
        ok "refused: $words"
    else
        bad "plan $*, expected \"$words\": $(cat "$scratch/err")"
    fi
}

# ---- plans ---------------------------------------------------------------------------------------------------------------

glm=random:glm-5.2,layers=75
sums='near(sum(v for k, v in p["ms"].items() if k != "token"), p["ms"]["token"], 1e-6) and
      near(1000 / p["ms"]["token"], p["tokens_per_s"], 1e-4) and
      all(near(sum(w["lies_bytes"][t] for t in tiers), w["owned_bytes"]) for w in p["workers"]) and
      all(near(sum(w["token_bytes"][t] for w in p["workers"]), p["token_bytes"][t]) for t in tiers)'

plan "$glm" --ram 48GiB --vram 0
check 'a plan adds up' "$sums"
check 'a token of GLM-5.2 chooses 8 experts in each of 75 layers' 'p["token_experts"] == 600 and
    13e9 < sum(p["token_bytes"].values()) < 14e9'
check 'RAM is filled, the rest is on disk' 'near(p["workers"][0]["lies_bytes"]["ram"], 48 << 30) and
    p["workers"][0]["lies_bytes"]["vram"] == 0 and p["bottleneck_part"] == "disk"'
check 'hot experts are wanted more than their share' 'p["token_bytes"]["ram"] / sum(p["token_bytes"].values()) >
    1.5 * p["workers"][0]["lies_bytes"]["ram"] / p["workers"][0]["owned_bytes"]'
check 'what would help is sorted, and helps' 'len(p["would_help"]) >= 4 and
    all(i["tokens_per_s"] > p["tokens_per_s"] for i in p["would_help"]) and
    [i["tokens_per_s"] for i in p["would_help"]] == sorted((i["tokens_per_s"] for i in p["would_help"]), reverse=True)'
plan "$glm" --ram 96GiB --vram 0
check 'twice the RAM is as fast as was said' 'near(p["tokens_per_s"],
    [i["tokens_per_s"] for i in q["would_help"] if i["change"].startswith("twice the RAM")][0], 1e-4)'
check 'and adds up' "$sums"
plan "$glm" --ram 96GiB --vram 24GiB
check 'a GPU takes from RAM and from the disk' 'p["tokens_per_s"] > q["tokens_per_s"] and
    near(p["workers"][0]["lies_bytes"]["vram"], 24 << 30) and p["token_bytes"]["disk"] < q["token_bytes"]["disk"]'
plan "$glm" --ram 500GiB --vram 0
check 'all in RAM: nothing from disk' 'p["token_bytes"]["disk"] == 0 and p["ms"]["disk"] == 0 and
    p["bottleneck_part"] == "ram" and not any("disk" in i["change"] for i in p["would_help"])'
plan "$glm" --ram 500GiB --vram 0 --ctx 131072
check 'a longer context takes memory and time' 'p["kv_bytes"] == 16 * q["kv_bytes"] and
    p["ms"]["attention"] > q["ms"]["attention"] and p["ms"]["ram"] == q["ms"]["ram"]'
plan demo --ram 64MiB --vram 0
check 'the demo model' "$sums"
"$potluck" plan demo --ram 64MiB --vram 0 >"$scratch/text" 2>"$scratch/err"
for words in 'nothing was measured' 'coordinator on ' 'bottleneck ' 'would help ' 'not converted'; do
    if grep -q "$words" "$scratch/text"; then ok "text: $words"; else bad "no \"$words\" in the text"; fi
done

laptops=bench/clusters/two-laptops.ini
plan "$glm" --cluster "$laptops"
check 'a cluster adds up' "$sums"
check 'all figures are in the file' 'len(p["workers"]) == 2 and p["ms"]["link"] > 0 and p["figures"].startswith("bench/")'
check 'the coordinator takes its weights from worker 0' 'near(p["workers"][0]["ram_budget_bytes"] + p["coordinator_bytes"] +
    p["reserve_bytes"], 12 << 30) and p["workers"][1]["ram_budget_bytes"] > p["workers"][0]["ram_budget_bytes"]'
plan "$glm" --cluster "$laptops" --map sliced
check 'slices wait for nobody' 'p["ms"]["token"] < q["ms"]["token"] and near(p["token_bytes"]["disk"], q["token_bytes"]["disk"], .05)'
plan "$glm" --cluster "$laptops" --map random:7
check 'a random map adds up' "$sums"
plan "$glm" --cluster "$laptops" --ram 2GiB
check '--ram is a ceiling for every process' 'all(near(w["ram_budget_bytes"], 2 << 30) for w in p["workers"])'
# variant SED: the laptops with something changed
variant() {
    sed "$1" "$laptops" >"$scratch/variant.ini"
    echo "$scratch/variant.ini"
}
refused 'has 6\.00 GiB of RAM, but the coordinator.s weights take 6\.[0-9]* GiB' "$glm" --cluster "$(variant 's/12GiB/6GiB/')"
refused 'worker 1 on second owns 179\.[0-9]* GiB .* its disk has 93\.13 GiB' "$glm" --cluster "$(variant 's/300GB/100GB/')"
refused 'variant.ini:[0-9]*: ' "$glm" --cluster "$(variant 's/^ram = 12GiB/ram = 12/')"

refused 'has 0\.00[0-9] GiB of RAM for experts, but needs 0\.0[0-9]* GiB' demo --ram 10KiB --vram 0
refused 'no-such-file' demo --cluster "$scratch/no-such-file"
refused 'no such directory' no/such/model
echo 'not a usage file' >"$scratch/usage"
refused 'usage' demo --usage "$scratch/usage"

# What earlier runs counted takes the curve's place.
if "$potluck" convert demo "$scratch/packed" --quiet >"$scratch/text" 2>&1 &&
    "$potluck" run "$scratch/packed" --ram 3MiB --vram 0 --temp 0 -n 64 --quiet -p 'Once upon a time' >"$scratch/text" 2>&1; then
    plan "$scratch/packed" --ram 3MiB --vram 0 --usage off
    check 'without a usage file' 'p["packed"] and "curve" in p["choices"] and p["token_bytes"]["disk"] > 0'
    plan "$scratch/packed" --ram 3MiB --vram 0
    check 'with one' 'p["choices"].startswith("as counted") and p["token_bytes"] != q["token_bytes"] and
        near(sum(p["token_bytes"].values()), sum(q["token_bytes"].values()), .01)'
    check 'and it adds up' "$sums"
else
    bad "a converted model: $(cat "$scratch/text")"
fi

# ---- status --------------------------------------------------------------------------------------------------------------

folder=$XDG_RUNTIME_DIR/potluck
mkdir -p "$folder"
chmod 700 "$folder"
# Field 22 of a process's stat, whose second may hold spaces.
ticks=$(sed 's/.*) //' "/proc/$$/stat" | cut -d' ' -f20)
beacon() { # PID TICKS
    printf '{"potluck": 1, "pid": %d, "start_ticks": %d, "role": "worker", "worker": 1, "workers": 3, "state": "loading", ' "$1" "$2"
    printf '"load_done_bytes": 43, "load_total_bytes": 100, "model": "some/model", "written_us": 1000}\n'
}
beacon $$ "$ticks" >"$folder/$$.json"
"$potluck" status >"$scratch/text" 2>"$scratch/err"
if grep -qE "^ *$$ +worker 1 of 3 +loading 43% +- .* some/model$" "$scratch/text"; then
    ok 'status: a live process, and "-" for what it does not tell'
else
    bad "status: $(cat "$scratch/text" "$scratch/err")"
fi
"$potluck" status --json >"$scratch/out"
check 'status --json' "[(w['state'], w['loaded'], w['tokens']) for w in p['processes'] if w['pid'] == $$] == [('loading', .43, None)]"
beacon $$ 1 >"$folder/$$.json"
"$potluck" status >"$scratch/text"
if ! grep -q "^ *$$ " "$scratch/text" && [ ! -e "$folder/$$.json" ]; then
    ok 'status: a dead process is not shown, and its file removed'
else
    bad "status: $(cat "$scratch/text")"
fi
echo '{"potluck": 1, "pid": "x' >"$folder/$$.json"
if "$potluck" status >"$scratch/text" && grep -q "^ignored .*$$.json" "$scratch/text"; then
    ok 'status: a file that is none is reported'
else
    bad "status: $(cat "$scratch/text")"
fi
rm "$folder/$$.json"
chmod 755 "$folder"
if "$potluck" status >"$scratch/text" && grep -q 'chmod 700' "$scratch/text"; then
    ok 'status: a directory that is open to others is reported'
else
    bad "status: $(cat "$scratch/text")"
fi
chmod 700 "$folder"

# A running cluster: all of its processes, and none afterwards.
seen() {
    "$potluck" status >"$scratch/text" 2>&1
    grep -qE "^ *${ranks[0]} +coordinator, worker 0 of 2 " "$scratch/text" && grep -qE "^ *${ranks[1]} +worker 1 of 2 " "$scratch/text"
}
mkfifo "$scratch/pipe"
exec 3<>"$scratch/pipe" # a chat that waits for its first line
start 2 "$potluck" chat demo --temp 0 <&3 || bad 'the ranks did not start'
if until_true 30 seen; then ok 'status: a running cluster'; else bad "status: $(cat "$scratch/text" "$scratch/err")"; fi
for pid in "${ranks[@]}"; do kill -TERM "$pid" 2>/dev/null; done
exec 3>&-
gone() {
    for pid in "${ranks[@]}"; do if alive "$pid"; then return 1; fi; done
}
until_true 30 gone || bad 'the ranks did not end'
over() { if alive "$launcher"; then return 1; fi; }
until_true 10 over || bad 'mpirun did not end'
"$potluck" status >"$scratch/text"
if [ -z "$(ls "$folder")" ]; then ok 'status: they took their files along'; else bad "left: $(ls "$folder")"; fi
if ! grep -qE "^ *(${ranks[0]}|${ranks[1]}) " "$scratch/text"; then ok 'status: and are gone'; else bad "$(cat "$scratch/text")"; fi

[ "$failures" -eq 0 ]
