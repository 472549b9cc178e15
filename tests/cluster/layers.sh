#!/usr/bin/env bash
# `potluck bench layers` on a random model: every rank gives its rows, whatever the map; what cannot be measured is refused.
# Numbers are not looked at.
# shellcheck source=tests/cluster/common.bash
. "$(dirname "$0")/common.bash"

number='[0-9][0-9.]*'
row() { # row PHASE RANK
    grep -cE "^\{\"phase\": \"$1\", \"rank\": $2, \"ms_per_layer\": $number, \"bytes_per_layer\": $number, \"gbps\": $number, \"roofline_gbps\": $number, \"fraction\": $number, \"fraction_p10\": $number, \"fraction_p90\": $number\}$" "$scratch/got"
}

# rows NAME N LINES [OPTION...]: alone when N is 1
rows() {
    local name=$1 n=$2 lines=$3 launch=() missing='' rank
    shift 3
    [ "$n" -gt 1 ] && launch=(timeout 120 "${mpirun[@]}" -n "$n")
    if ! "${launch[@]}" "$potluck" bench layers random:tiny --tokens 5 --json --quiet "$@" >"$scratch/got" 2>"$scratch/err"; then
        bad "$name: exit status"
        head -20 "$scratch/err"
        return
    fi
    [ "$(row dense 0)" -eq 1 ] || missing="$missing dense"
    [ "$(row experts 0)" -eq 1 ] || missing="$missing experts"
    for ((rank = 0; rank < n; rank++)); do
        [ "$(row compute "$rank")" -eq 1 ] || missing="$missing compute $rank"
    done
    [ "$(grep -c '^{"model": "random:tiny", ' "$scratch/got")" -eq 1 ] || missing="$missing machine"
    [ "$(wc -l <"$scratch/got")" -eq "$lines" ] || missing="$missing lines"
    if [ -z "$missing" ]; then
        ok "$name"
    else
        bad "$name: wrong or missing:$missing"
        cat "$scratch/got"
    fi
}

refused() { # refused WORDS ARGUMENT...
    local words=$1
    shift
    if "$potluck" bench layers "$@" >"$scratch/got" 2>"$scratch/err" || ! grep -q "$words" "$scratch/err"; then
        bad "bench layers $*: \`$words\` was expected"
        cat "$scratch/err"
    else
        ok "bench layers $* is refused"
    fi
}

rows 'bench layers, alone' 1 4
rows 'bench layers, alone, other formats' 1 4 --experts q4g64 --dense q4g64
rows 'bench layers, two ranks' 2 5 --map sliced
rows 'bench layers, three ranks' 3 6 --map sliced
refused 'known are glm-5.2, tiny' random:none
refused 'at most 1024' random:tiny --tokens 5000
refused 'cannot be drawn' random:tiny --experts f32
[ "$failures" -eq 0 ]
