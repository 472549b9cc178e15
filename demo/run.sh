#!/usr/bin/env bash
# The demo (`make demo`): four processes answer together, then one process gives the same bytes.
#
#   demo/run.sh [PROGRAM]      PROGRAM is build/potluck when it is not given; what is missing is built
set -euo pipefail
cd "$(dirname "$0")/.."

potluck=${1:-build/potluck}
[ -x "$potluck" ] || make -j2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$'\033[1m' dim=$'\033[2m' plain=$'\033[0m'
else
    bold='' dim='' plain=''
fi
# The arguments as one would type them.
typed() {
    local word line=''
    for word in "$@"; do
        [[ $word =~ ^[A-Za-z0-9_./-]+$ ]] || word=${word@Q}
        line+=" $word"
    done
    printf '%s' "$line"
}
say() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
note() { printf '%s%s%s\n' "$dim" "$*" "$plain"; }

# Runs a launcher with the program; the report is shown only if it failed.
generate() {
    local report=$1
    shift
    if ! "$@" 2>"$report" </dev/null; then
        cat "$report" >&2
        exit 1
    fi
}

# question NAME TITLE LEAD ARGUMENTS...: the answer of four processes is shown behind LEAD, that of one is kept for comparison.
# Greedy (--temp 0), so that there is one right answer.
question() {
    local name=$1 title=$2 lead=$3
    shift 3
    local command=(run demo --temp 0 "$@")
    say "$title"
    note "\$ deploy/potluck-mpirun -n 4 $potluck$(typed "${command[@]}")"
    generate "$scratch/$name.report" deploy/potluck-mpirun -n 4 "$potluck" "${command[@]}" >"$scratch/four"
    { printf '%s' "$lead" && cat "$scratch/four" && printf '\n'; } | fold -s -w 110
    generate "$scratch/one.report" "$potluck" "${command[@]}" >"$scratch/one"
    local four one verdict=equal
    four=$(sha256sum <"$scratch/four") one=$(sha256sum <"$scratch/one")
    if ! cmp -s "$scratch/four" "$scratch/one"; then
        verdict=DIFFERENT
        failures=$((failures + 1))
    fi
    printf '  %-10s %5d bytes   four %.16s   one %.16s   %s\n' \
        "$name" "$(wc -c <"$scratch/four")" "$four" "$one" "$verdict" >>"$scratch/verdicts"
}

say 'potluck: a mixture-of-experts model, its experts spread over four processes'
note 'The model in demo/ has the architecture of GLM-5.2 at a small size: 14 million parameters, 64 experts a layer, 4 of'
note 'them chosen for every token. One process coordinates (attention, router, head), all four hold experts.'

question story 'A story: the model goes on from a few words' 'Once upon a time' -p 'Once upon a time' -n 110
question capital 'A fact: the question goes through the chat template (--chat)' '' \
    --chat -p 'Which city is the capital of Sweden?'
question json 'A JSON object' '' --chat -p 'Give a JSON object for Jack, aged 24, from Dublin.'
question tool 'A tool call: the model is told of a function (--tools) and asks for it' '' \
    --chat --tools demo/tools.json -p 'What is the weather in Paris?'

say 'What the four processes did for the story'
sed 's/^/  /' "$scratch/story.report"

say 'The same four questions in one process'
cat "$scratch/verdicts"
if [ "$failures" -ne 0 ]; then
    printf 'The answers differ: that is a bug, please report it.\n' >&2
    exit 1
fi
note 'Not only close: the same bytes, whichever process holds which part of which expert (docs/numerics.md says how).'

say 'What to try next'
cat <<TEXT
  $potluck chat demo
      talk with it
  $potluck run demo -p "Once upon a time"
      another story every time; --seed 1 fixes it
  deploy/potluck-mpirun -n 4 $potluck run demo --map sliced --temp 0 -p "Once upon a time"
      every expert cut over all four processes: the same text again
  $potluck inspect demo
      what is in the model, and the memory it needs
  $potluck eval ppl demo demo/held_out.txt --tokens 2048 --against reference
      how far the packed model is from the exact one
  docs/cluster.md
      the same on several machines
TEXT
