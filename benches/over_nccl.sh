#!/usr/bin/env bash
# Sequences split over the GPUs of this machine, over NCCL: links, every method beside one GPU and beside PyTorch's context parallelism,
# decoding over a split cache, repeats bit by bit, and a rank that is killed.
#
#   benches/over_nccl.sh pack FOLDER    compile what it needs into FOLDER (no GPU)
#   benches/over_nccl.sh FOLDER OUT [STEP...]
#                                       run all steps, or these, from FOLDER on a machine with several GPUs, 4 min; results go to OUT and
#                                       OUT.tar.gz
#
# Leave NVLink's multicast as the environment has it (NCCL_NVLS_ENABLE). A step that fails does not keep the next from running.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ "${1:-}" = pack ]; then
    set -e
    folder=$(mkdir -p "${2:?the folder to pack}" && cd "$2" && pwd)
    cd "$here"
    cargo build --release --package ferroflash-cli
    cargo build --release --package ferroflash-distributed --example ranks
    install -s target/release/ferroflash target/release/examples/ranks "$folder"
    tar -czf "$folder/ptx.tar.gz" -C target ptx
    exit
fi

folder=$(cd "${1:?the packed folder}" && pwd)
out=$(mkdir -p "${2:?the folder for results}" && cd "$2" && pwd)
steps=${*:3}
gpus=$(nvidia-smi --list-gpus | wc -l)
tar -xzf "$folder/ptx.tar.gz" -C "$folder"
export FERROFLASH_PTX=$folder/ptx
if [ -z "${FERROFLASH_LIBNCCL:-}" ]; then
    # The library that PyTorch brings.
    FERROFLASH_LIBNCCL=$(python3 -c 'import nvidia.nccl, os; print(os.path.join(list(nvidia.nccl.__path__)[0], "lib", "libnccl.so.2"))')
    export FERROFLASH_LIBNCCL
fi
failed=()

# step NAME SECONDS COMMAND...: its output goes to OUT/NAME.txt too.
step() {
    local name=$1 limit=$2 start=$SECONDS
    shift 2
    [[ -z $steps || " $steps " == *" $name "* ]] || return
    echo "== $name"
    timeout --kill-after 5 "$limit" "$@" 2>&1 | tee "$out/$name.txt"
    local code=${PIPESTATUS[0]}
    [ "$code" = 0 ] || failed+=("$name ($code)")
    echo "-- $name: $((SECONDS - start)) s, exit code $code"
}

bench() {
    "$folder/ferroflash" bench --dtype bf16 --devices "$gpus" --over nccl --rank-limit 20 --force "$@"
}

# Rank 1 is killed while both compute: rank 0 has to end by itself, with an error that names the step.
killed() {
    local shared code start
    shared=$(mktemp -d)
    for rank in 0 1; do
        RANK=$rank WORLD_SIZE=2 CALLS=1000000 LIMIT_S=5 "$folder/ranks" "$shared" &
        pids[rank]=$!
    done
    sleep 8
    kill -9 "${pids[1]}"
    start=$SECONDS
    wait "${pids[0]}"
    code=$?
    echo "rank 0 ended with code $code, $((SECONDS - start)) s after rank 1 was killed"
    [ "$code" = 1 ]
}

export -f bench killed
export folder gpus

tokens=$((8192 * gpus)) more=$((32768 * gpus)) most=$((131072 * gpus))
step topology 20 nvidia-smi topo -m
step short 60 bash -c "bench --mask both --shape 1,32,8,$tokens,$tokens,128 1,32,32,$tokens,$tokens,128 --json '$out/short.json'"
step peer 120 torchrun --nproc-per-node "$gpus" "$here/benches/context_parallel.py" --out "$out/peer.json" \
    --shape "1,32,8,$tokens,128" "1,32,32,$tokens,128" "1,32,8,$more,128" "1,32,32,$more,128"
step long 90 bash -c "bench --mask both --reps 7 --warm-up 0 --shape 1,32,8,$more,$more,128 1,32,32,$more,$more,128 --json '$out/long.json'"
step decode 40 bash -c "bench --shape 1,32,8,1,1048576,128 8,32,8,1,131072,128 --json '$out/decode.json'"
step killed 40 bash -c killed
step repeats 40 bash -c "bench --causal --reps 1 --repeats 250 --shape 1,32,8,$((tokens / 4)),$((tokens / 4)),128 --json '$out/repeats.json'"
step graph 30 bash -c "bench --causal --graph --shape 1,32,8,$tokens,$tokens,128 --json '$out/graph.json'"
step verify 60 "$folder/ferroflash" verify --devices "$gpus" --over nccl --repeats 3
step alone 20 bash -c "gpus=1 bench --causal --graph --method all-gather --shape 1,32,8,8192,8192,128"
step longest 90 bash -c "bench --causal --reps 3 --warm-up 0 --shape 1,32,8,$most,$most,128 --json '$out/longest.json'"
if python3 -c 'import ferroflash' 2>/dev/null; then
    step python 60 torchrun --nproc-per-node "$gpus" "$here/examples/torchrun.py"
else
    echo "== python: skipped, the wheel is not installed"
fi
tar -czf "$out.tar.gz" -C "$out" .

echo "== ${#failed[@]} steps failed: ${failed[*]:-none}"
[ ${#failed[@]} = 0 ]
