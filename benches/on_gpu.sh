#!/usr/bin/env bash
# What the README, the notes and the leaderboard say of a GPU, measured again: `pack` where there is a compiler, the other steps where
# there is a GPU. --help says more.
set -euo pipefail

usage() {
    cat <<'TEXT'
Measures everything that the project says of a GPU.

  benches/on_gpu.sh pack FOLDER           compile all that the steps need into FOLDER (needs the compilers and git, no GPU)
  benches/on_gpu.sh FOLDER OUT STEP...    run steps from FOLDER (needs a GPU, and no compiler); results go to OUT

Steps, with the time that each took on an H200:
  tables      Ferroflash and PyTorch in turns: headline.json and lengths.json, for benches/results (5 min)
  verify      every kernel on the odd grid, 250 runs bit by bit (5 min)
  backward    every kernel of the backward pass on drawn problems, then on odd lengths and by turns with PyTorch's flash and cuDNN, table
              last: backward.json (3 min)
  gradients   1000 backward passes bit by bit: dense, packed, in chunks of heads; a head of 16384 queries and keys against float64; and
              compute-sanitizer's memcheck of every kernel of the backward pass (not run yet)
  ragged      packed sequences, pages, windows and scores in turns with the dense kernel of the same sizes: ragged.json (1 min)
  chunks      backward passes with dS of several sizes, in turns: chunks.json (not run yet)
  packed      backward passes of packed sequences by five products and by seven, in turns: packed.json (not run yet)
  candidates  backward passes by the rows of FOLDER/candidates (benches/backward_candidates.json), verified first (3 min)
  peers       forward and backward passes beside other libraries in one process, by the program that FERROFLASH_PEERS names, which
              takes benches/peer.py; it asks for the wheel (not run yet)
  sanitize    compute-sanitizer's memcheck and racecheck over every kernel (6 min)
  merge       splits merged in the same launch and in another, in turns (20 s)
  calls       device time of the standard problems, and the host's time for a call (1 min)
  search      a search from a poor row, for `cargo lab leaderboard --add` (1 min)
  gate        the gate shows that it finds what it plants; what GATE_S seconds (200) did not reach, the same call goes on with (2 min)
  profile     Nsight Compute on the fastest row of a long problem; where it may not count, what PyTorch's profiler sees (1 min)
  canonical   the lab's session: PyTorch's p50 and p90 beside ours on the six canonical problems, and their places on the leaderboard;
              runs.tar.gz is to be kept (2 min)

`gate profile` in one call takes 120 s; what they found is in gate.tar.gz and profile.tar.gz.

A step that fails does not keep the next from running; the summary comes last and the exit code is 1.
FERROFLASH_STEP_S limits a step, in seconds (default 590).
TEXT
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SEARCH_START=fwd_wgmma_f16_d64_m64n64_w8s1c1_persistent
SEARCH_ROW='{"isa":"wgmma","dtype":"f16","head_dim":64,"block_m":64,"block_n":64,"warps":8,"stages":1,"acc":"f32","min_ctas":1,
    "warp_rows":16,"schedule":"persistent"}'
SEARCH_SHAPE=2,16,16,2048,2048,64
CANONICAL_START=fwd_wgmma_f16_d64_m128n128_w12s3c1_persistent
PROFILED=fwd_wgmma_f16_d128_m128n128_w12s3c1_persistent

pack() {
    mkdir -p "$1"
    local folder
    folder=$(cd "$1" && pwd)
    cd "$here"
    cargo xtask build-ptx --ptxas --cubin
    cargo build --release --package ferroflash-cli --package lab
    # The newest is the one that was just made.
    cargo bench --package benches --bench device --no-run
    install -s target/release/ferroflash target/release/lab "$folder"
    install -s "$(find target/release/deps -maxdepth 1 -name 'device-*' -executable | xargs ls -t | head -n 1)" "$folder/device"
    rm -rf "$folder/ptx" "$folder/space" "$folder/candidates"
    cp -r target/ptx "$folder/ptx"
    cargo xtask build-ptx --ptxas --cubin --rows benches/backward_candidates.json --out "$folder/candidates"
    target/release/lab build --device sim --arch sm_90a --space "$SEARCH_ROW" \
        --only block_m=64,128,192 --only block_n=64,128 --only stages=1,2,3 --out "$folder/space" "$SEARCH_ROW"
    git rev-parse --short HEAD >"$folder/commit"
    du -sh "$folder"
}

case ${1:---help} in
-h | --help)
    usage
    exit
    ;;
pack)
    pack "${2:?the folder to pack}"
    exit
    ;;
esac
if [ $# -lt 3 ]; then
    usage >&2
    exit 2
fi

from=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
cd "$here"
ferroflash=$from/ferroflash
export FERROFLASH_PTX=$from/ptx FERROFLASH_COMMIT
FERROFLASH_COMMIT=$(cat "$from/commit")

tables() {
    python3 benches/torch_sdpa.py --ferroflash "$ferroflash" --ptx "$from/ptx" --out "$out/headline.json"
    python3 benches/torch_sdpa.py --ferroflash "$ferroflash" --ptx "$from/ptx" --set lengths --rounds 2 --out "$out/lengths.json"
}
verify() { "$ferroflash" verify --grid odd --rows all --repeats 250 --device cuda; }
backward() {
    timeout 150 "$ferroflash" verify --backward --grid quick --repeats 20 --device cuda
    timeout 420 python3 benches/torch_backward.py --ferroflash "$ferroflash" --ptx "$from/ptx" --out "$out/backward.json"
}
GRADIENTS_SHAPE=2,6,2,331,457
gradients() {
    local head_dim mask failed=0
    local repeated=("$ferroflash" verify --backward --device cuda --repeats 1000)
    for head_dim in 64 96 128 256; do
        for mask in full causal; do
            "${repeated[@]}" --shape "$GRADIENTS_SHAPE,$head_dim" --mask "$mask" --dtype bf16 --rows all || failed=1
        done
    done
    # Heads together, apart, and not kept at all.
    for limit in 2G 4M 0; do
        "${repeated[@]}" --shape 2,4,2,1000,1000,128 --causal --dtype bf16 --ds-max "$limit" || failed=1
    done
    "${repeated[@]}" --shape 4,6,2,900,900,128 --causal --dtype bf16 --seqlens-q 900,1,333,512 || failed=1
    "$ferroflash" verify --backward --device cuda --shape 1,1,1,16384,16384,128 --causal --dtype bf16 --repeats 3 || failed=1
    compute-sanitizer --tool memcheck --error-exitcode 1 "$ferroflash" verify --backward --grid quick --device cuda || failed=1
    return $failed
}
turns() { python3 benches/turns.py --ferroflash "$ferroflash" --ptx "$from/ptx" --json "$out/$1.json" "$2"; }
ragged() { turns ragged benches/turns/ragged.txt; }
chunks() {
    local shape mask limit line
    for shape in 4,32,32,4096,4096,64 2,16,16,8192,8192,128 1,16,16,16384,16384,128 1,64,8,8192,8192,128; do
        for mask in full causal; do
            line=
            for limit in 2304M 256M 512M 1G 4608M 9G; do
                line+="${line:+ | }--backward --shape $shape --mask $mask --dtype bf16 --ds-max $limit"
            done
            echo "$shape $mask: $line"
        done
    done | turns chunks -
}
packed() {
    # Sixteen sequences of 128 to 8192 tokens, drawn as the programs of other libraries draw them; and many short ones.
    local long short lengths sequences longest head_dim passes
    long=$(python3 -c 'import torch; g = torch.Generator().manual_seed(0); print(*torch.randint(128, 8193, (16,), generator=g).tolist(), sep=",")')
    short=$(python3 -c 'print(*[20 + 37 * i % 300 for i in range(128)], sep=",")')
    for lengths in "$long" "$short"; do
        sequences=$(tr , '\n' <<<"$lengths" | wc -l)
        longest=$(tr , '\n' <<<"$lengths" | sort -n | tail -n 1)
        for head_dim in 64 128; do
            passes="--backward --shape $sequences,16,16,$longest,$longest,$head_dim --mask causal --dtype bf16 --seqlens-q $lengths"
            # The plan's, with more memory for dS, and seven products.
            echo "$sequences sequences, head_dim $head_dim: $passes | $passes --ds-max 4608M | $passes --rows bwd_wgmma_dq_bf16_d${head_dim}_m128n128_w12s2"
        done
    done | turns packed -
}
candidates() {
    # In one launch, with 2 to 4 stages, beside pairs of launches and seven products: two rounds.
    local shape round failed=0
    for shape in 64_m96 128_m64; do
        "$ferroflash" verify --backward --grid quick --repeats 20 --device cuda --ptx "$from/candidates" \
            --rows "bwd_wgmma_dqdkv_bf16_d${shape}n128_w12s2" || failed=1
    done
    for round in 1 2; do
        for shape in 4,32,32,4096,4096,64 4,16,16,4096,4096,128 2,16,16,8192,8192,128 1,16,16,16384,16384,128 \
            16,16,16,1024,1024,128 1,64,8,4096,4096,128; do
            "$ferroflash" bench --backward --shape "$shape" --mask both --dtype bf16 --rows all --ptx "$from/candidates" \
                --json "$out/candidates-$shape-$round.json" --force || failed=1
        done
    done
    return $failed
}
peers() {
    FERROFLASH_PEER=$PWD/benches/peer.py python3 "${FERROFLASH_PEERS:?the program that times libraries}" \
        --peers torch_cudnn,torch_fa2,fa3,fa4,ours --ops bwd,bwd_det,varlen_bwd --reps 11
}
sanitize() {
    compute-sanitizer --tool memcheck --error-exitcode 1 "$ferroflash" verify --grid quick --rows all --device cuda
    # Programs that are right, with the means by which these kernels synchronise: what the tool makes of them.
    for program in ptx-sim/tests/pass/*barrier*.ptx; do
        compute-sanitizer --tool racecheck python3 ptx-sim/tests/on_gpu.py "$program" | grep -E 'right|WRONG|FAILED|left out|SUMMARY' || true
    done
    local log=$out/racecheck.txt
    compute-sanitizer --tool racecheck --print-limit 0 "$ferroflash" verify --grid quick --rows all --device cuda >"$log" 2>&1 || true
    grep SUMMARY "$log"
    # Hazards a kernel. Those in the merge of splits of the kernels with wgmma are known: docs/notes/racecheck.md.
    local kernels
    kernels=$(sed -n 's/.* access at \([^+]*\)+.*/\1/p' "$log" | sort | uniq -c)
    echo "$kernels"
    ! grep -Ev 'fwd_wgmma_.*_split$|^$' <<<"$kernels"
}
merge() {
    local shapes=(1,32,8,1,32768,128 8,32,8,1,8192,128 1,32,8,8,32768,128 1,8,1,128,32768,128 1,8,8,1,4096,64)
    "$ferroflash" bench --shape "${shapes[@]}" --combine fused,kernel --json "$out/merge.json"
}
calls() {
    # Where nothing can be measured it says so, and ends well.
    ! "$from/device" --bench | tee /dev/stderr | grep -E 'skipped|FAILED|WRONG' >/dev/null
}
search() {
    printf '[problems]\nshapes = ["%s"]\ndtypes = ["f16"]\nmasks = ["causal"]\n[thresholds]\nkeep_problems = 1\n' "$SEARCH_SHAPE" >"$out/search.toml"
    "$from/lab" evolve --device cuda --ptx "$from/space" --config "$out/search.toml" --start "$SEARCH_START" --micro \
        --budget 8,40s --seed 7 --runs "$out/runs"
    # The best row of the table in the same run as the search's.
    "$ferroflash" bench --shape "$SEARCH_SHAPE" --causal --rows all
    tar -C "$out" -czf "$out/runs.tar.gz" runs
}
canonical() {
    printf '[problems]\nshapes = ["1,8,8,512,512,64", "4,16,16,512,512,64", "8,16,16,512,512,64"]\ndtypes = ["f16"]\n' >"$out/canonical.toml"
    local options=(--device cuda --config "$out/canonical.toml" --runs "$out/runs")
    # A part that fails does not keep the others from running.
    local failed=0
    "$from/lab" benchmark --peer torch --ferroflash "$ferroflash" "${options[@]}" || failed=1
    "$from/lab" evolve --ptx "$from/ptx" --start "$CANONICAL_START" --micro --budget 4,120s --seed 7 "${options[@]}" || failed=1
    tar -C "$out" -czf "$out/runs.tar.gz" runs
    return $failed
}
gate() {
    local before=("$out"/gate/*/) options=()
    # A session that was cut short is gone on with.
    [ ! -d "${before[0]}" ] || options=(--resume "${before[-1]}")
    local ended=0
    "$from/lab" gate --self-test --device cuda --ptx "$from/ptx" --seconds "${GATE_S:-200}" --runs "$out/gate" "${options[@]}" || ended=$?
    tar -C "$out" -czf "$out/gate.tar.gz" --exclude ptx gate
    return $ended
}
profile() {
    # A tile for nearly each multiprocessor; longer ones take minutes to count on the simulator.
    printf '[problems]\nshapes = ["1,16,16,1024,1024,128"]\ndtypes = ["f16"]\nmasks = ["full"]\n' >"$out/profile.toml"
    local ended=0
    "$from/lab" profile --device cuda --ptx "$from/ptx" --config "$out/profile.toml" "$PROFILED" --runs "$out/profile" || ended=$?
    tar -C "$out" -czf "$out/profile.tar.gz" --exclude ptx profile
    return $ended
}

summary=()
failed=0
for step in "$@"; do
    case $step in
    tables | verify | backward | gradients | ragged | chunks | packed | candidates | peers | sanitize | merge | calls | search | gate | profile | canonical) ;;
    *)
        echo "on_gpu.sh: no step is called $step" >&2
        exit 2
        ;;
    esac
    echo "== $step"
    begun=$SECONDS
    # A shell of its own, so that a limit can end it.
    export -f "$step" turns gate profile
    export ferroflash from out GRADIENTS_SHAPE SEARCH_START SEARCH_SHAPE CANONICAL_START PROFILED
    if timeout "${FERROFLASH_STEP_S:-590}" bash -euo pipefail -c "$step" 2>&1 | tee "$out/$step.log"; then
        verdict=done
    else
        verdict="FAILED, see $step.log"
        failed=1
    fi
    summary+=("$(printf '%-10s %4d s  %s' "$step" $((SECONDS - begun)) "$verdict")")
done
printf '%s\n' "== summary" "${summary[@]}"
exit $failed
