#!/bin/sh
# Makes the fuzzer's first inputs of the tests' programs, and a dictionary of the supported forms.
# Then, in ptx-sim: cargo +nightly fuzz run load_and_launch -- -dict=fuzz/ptx.dict -max_total_time=3600 -timeout=20 -rss_limit_mb=2048
cd "$(dirname "$0")" && mkdir -p corpus/load_and_launch || exit 1
find ../tests -name '*.ptx' -size -48k | while read -r file; do
    cp "$file" "corpus/load_and_launch/$(echo "${file#../tests/}" | tr '/' '_')"
done
grep -oE '^\| `[^`]+`' ../SUPPORT.md | tr -d '|`[]' | tr ' ' '\n' | grep -E '^[a-z0-9_:]+$' | sort -u | sed 's/.*/".&"/' > ptx.dict
