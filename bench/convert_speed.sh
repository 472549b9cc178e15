#!/usr/bin/env bash
# How fast `potluck convert` is, beside what it cannot be faster than: reading the source, writing the result (both plain, past the page cache) and
# quantizing in memory.  Each of these is measured before and after every conversion; the mean counts.  CSV to standard output.
#
#   bench/convert_speed.sh DIRECTORY [EXPERTS] >bench/results/HOST/convert.csv       needs 75 MB an expert (default 24) twice over, and root to drop caches
#
# fraction: the time that the slowest of the three alone would take, over the time that convert took.  one_disk: the same for reading and writing one after
# the other, which is what a single disk can do when source and result lie on it; above 1 when it does both better at a time.
set -eu
cd "$(dirname "$0")/.."
potluck=${POTLUCK:-build/potluck}
pack=${BUILD:-build/release}/bench/bench_pack
work=$1/potluck-convert-speed
experts=${2:-24}
rounds=${ROUNDS:-3}
threads=$(nproc)
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT

seconds_of() { # COMMAND...: how long it takes
    local begin=$EPOCHREALTIME
    "$@" >/dev/null 2>&1
    awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }'
}
forget() { sync; [ ! -w /proc/sys/vm/drop_caches ] || echo 3 >/proc/sys/vm/drop_caches; }
number() { awk -v k="\"$1\":" '{ for (i = 1; i < NF; i++) if ($i == k) { gsub(/[,}]/, "", $(i + 1)); print $(i + 1); exit } }'; }
quantizer() { # FORMAT ROUNDING: GB/s of the source
    "$pack" "$threads" bf16 "$1" "$2" |
        awk -F, '/^#/ { next } !c { for (i = 1; i <= NF; i++) if ($i == "source_gbps") c = i; next } { print $c; exit }'
}

bench/make_checkpoint.py "$work/source" "$experts"
shard=$work/source/model.safetensors
bytes=$(stat -c %s "$shard")
echo "# host: $(uname -srm), $threads cores; cpu: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
echo "# load: $(cut -d' ' -f1-3 /proc/loadavg) when it began"
echo "# command: bench/convert_speed.sh DIRECTORY $experts; source: BF16, $bytes bytes"
echo 'experts,rounding,round,seconds,source_bytes,packed_bytes,convert_read_gbps,read_gbps,write_gbps,quantizer_gbps,slowest,fraction,one_disk'
for case in ${CASES:-mxfp4:auto q4g64:auto q4g64:search bf16:auto}; do
    format=${case%:*}
    rounding=${case#*:}
    for round in $(seq "$rounds"); do
        rm -rf "$work/packed"
        quant_a=$(quantizer "$format" "$rounding")
        forget
        read_a=$(seconds_of dd if="$shard" of=/dev/null bs=32M iflag=direct)
        forget
        "$potluck" convert "$work/source" "$work/packed" --experts "$format" --rounding "$rounding" --json --quiet >"$work/report"
        packed=$(number bytes_written <"$work/report")
        seconds=$(number seconds <"$work/report")
        rm -rf "$work/packed"
        forget
        write_a=$(seconds_of dd if=/dev/zero of="$work/zeros" bs=32M count=$((packed / 33554432 + 1)) oflag=direct conv=fsync)
        rm -f "$work/zeros"
        read_b=$(seconds_of dd if="$shard" of=/dev/null bs=32M iflag=direct)
        quant_b=$(quantizer "$format" "$rounding")
        awk -v case="$format,$rounding,$round" -v s="$seconds" -v n="$bytes" -v p="$packed" -v ra="$read_a" -v rb="$read_b" -v w="$write_a" \
            -v qa="$quant_a" -v qb="$quant_b" 'BEGIN {
                read = (ra + rb) / 2; quant = 2 * n / 1e9 / (qa + qb); most = read; name = "read"
                if (w > most) { most = w; name = "write" }
                if (quant > most) { most = quant; name = "quantizer" }
                printf "%s,%.3f,%.0f,%.0f,%.3f,%.3f,%.3f,%.3f,%s,%.3f,%.3f\n", case, s, n, p, n / 1e9 / s, n / 1e9 / read, p / 1e9 / w,
                    (qa + qb) / 2, name, most / s, (read + w) / s }'
    done
done
