#!/usr/bin/env bash
# Each rank of a split sequence by itself on one GPU, at 8192 and 32768 tokens a rank over 2, 4 and 8 ranks: what the schedules lose before
# any wire. Usage: benches/ranks.sh [FOLDER for the results], with the command in FERROFLASH or on the PATH;
# METHODS and HEAD_GROUPS change what is run.
set -euo pipefail

command=${FERROFLASH:-ferroflash}
folder=${1:-ranks}
methods=${METHODS:-all-gather,ring,ulysses}
groups=()
[ -z "${HEAD_GROUPS:-}" ] || groups=(--head-groups "$HEAD_GROUPS")
mkdir -p "$folder"

for tokens in 8192 32768; do
    # What may be lost at most, in percent.
    if [ "$tokens" = 8192 ]; then target=4; else target=1.5; fi
    for devices in 2 4 8; do
        length=$((tokens * devices))
        echo "== $tokens tokens a rank, $devices ranks (target: at most $target % lost)"
        "$command" bench --shape "1,32,8,$length,$length,128" --mask causal --dtype bf16 --devices "$devices" \
            --method "$methods" ${groups[@]+"${groups[@]}"} --json "$folder/ranks_${tokens}_${devices}.json" --force
    done
done
