# What the cluster scripts share; they source it.  POTLUCK and BUILD come from the Makefile.
#
# Every process that is started here is ended here: `children` lists what mpirun started, and the trap ends what is left of
# it by its number, never by its name.
# shellcheck disable=SC2034 # used by those who source it
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
potluck=${POTLUCK:-build/potluck}
build=${BUILD:-build/release}
if ! command -v mpirun >/dev/null; then
    echo 'mpirun is not installed'
    exit 77
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun=(mpirun --oversubscribe --bind-to none)
scratch=$(mktemp -d)
failures=0
launcher='' # mpirun in the background
ranks=()    # the process of each rank

ok() { echo "ok    $*"; }
bad() {
    echo "FAIL  $*"
    failures=$((failures + 1))
}

# alive PID: is there such a process, other than as a zombie?
alive() {
    local state
    state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null)
    [ -n "$state" ] && [ "$state" != Z ]
}

clean_up() {
    local pid
    for pid in $launcher ${ranks[@]+"${ranks[@]}"}; do
        alive "$pid" && kill -KILL "$pid" 2>/dev/null
    done
    rm -rf "$scratch"
}
trap clean_up EXIT

# until_true SECONDS COMMAND...: tries the command until it succeeds; false after so long
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.02
    done
}

# The ranks that mpirun has started, found by what it puts into their environment.
find_ranks() {
    local pid rank n=0
    ranks=()
    # shellcheck disable=SC2013 # words are what is wanted
    for pid in $(cat "/proc/$launcher/task/"*/children 2>/dev/null); do
        rank=$(tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
        [ -n "$rank" ] || continue
        ranks[rank]=$pid
        n=$((n + 1))
    done
    [ "$n" -eq "$1" ]
}

# start N COMMAND...: the command on N ranks in the background, its output in $scratch/out and $scratch/err; its input is ours.
# Job control, for a shell without it starts what runs in the background with SIGINT ignored.
start() {
    local n=$1
    shift
    set -m
    "${mpirun[@]}" -n "$n" "$@" >"$scratch/out" 2>"$scratch/err" <&0 &
    launcher=$!
    set +m
    until_true 60 find_ranks "$n"
}

# milliseconds since the epoch
now_ms() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }
