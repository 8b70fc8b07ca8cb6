//! Where a kernel cuts what follows from its pointers and strides to 32 bits: right on every tensor that an examination can hold, and wrong on
//! one of more than 4 GB.

use super::statements::{words, written};
use kernels_gpu::params::{ForwardParams, WgmmaParams};
use kernels_gpu::row::Isa;
use std::collections::{BTreeSet, HashSet};
use std::mem::offset_of;

/// Operations that leave a distance in bytes one.
const KEEP: [&str; 11] = ["mov", "cvta", "add", "sub", "mul", "mad", "shl", "selp", "neg", "min", "max"];

/// The numbers of the lines of a forward kernel's PTX that do so, from 0 on.
pub(super) fn narrowed(ptx: &str, isa: Isa) -> BTreeSet<usize> {
    let first = if isa == Isa::Wgmma { offset_of!(WgmmaParams, forward) } else { 0 };
    let params = first..first + offset_of!(ForwardParams, seqlen_q);
    let lines: Vec<(&str, Vec<&str>)> = ptx.lines().map(|line| (line, words(line))).collect();
    let (mut wide, mut found) = (HashSet::new(), BTreeSet::new());
    loop {
        let before = wide.len();
        for (at, (line, words)) in lines.iter().enumerate() {
            let Some(op) = words.iter().position(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
            else {
                continue;
            };
            let mut parts = words[op].split('.');
            let (name, types) = (parts.next().unwrap_or_default(), parts.collect::<Vec<_>>());
            let bits = |back: usize| bits(types.iter().rev().nth(back).copied().unwrap_or_default());
            let of_params = words.iter().find_map(|word| word.rsplit_once("_param_0")).map(|(_, at)| at);
            let is_wide = match of_params {
                Some(at) => params.contains(&at.trim_start_matches('+').parse().unwrap_or(0)),
                None => words[op + 1..].iter().any(|word| wide.contains(word)),
            };
            // `mov.b64 {%r1, %r2}, %rd1;`
            let takes_apart =
                line.split_once(words[op]).is_some_and(|(_, rest)| rest.trim_start().starts_with('{'));
            let constant = words.last().and_then(|word| word.parse::<u64>().ok());
            let cuts = match name {
                "ld" => of_params.is_some() && bits(0) < 64,
                // Also `cvt.s64.s32 %rd2, %rd1;`.
                "cvt" => bits(0).min(bits(1)) < 64,
                "mov" => takes_apart,
                "and" => constant.is_some_and(|mask| (1 << 16..1 << 40).contains(&mask)),
                "shl" => constant.is_some_and(|by| by >= 16),
                _ => false,
            };
            if is_wide && cuts {
                found.insert(at);
            } else if is_wide && bits(0) == 64 && (of_params.is_some() || KEEP.contains(&name)) {
                wide.extend(written(words));
            }
        }
        if wide.len() == before {
            return found;
        }
    }
}

/// Bits of a type: of integers, and of what is no type more than any has.
fn bits(of: &str) -> u32 {
    of.strip_prefix(['b', 'u', 's']).and_then(|bits| bits.parse().ok()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_and_pointers_that_are_cut_are_found_and_sizes_are_not() {
        let stride = offset_of!(ForwardParams, k_strides);
        let size = offset_of!(ForwardParams, seqlen_k);
        let found = |code: &str| {
            let text = format!(
                "ld.param.b64 %rd1, [fwd_param_0+{stride}];\nld.param.b32 %r1, [fwd_param_0+{size}];\n{code}"
            );
            narrowed(&text, Isa::Mma).into_iter().map(|line| line - 2).collect::<Vec<_>>()
        };
        for cut in [
            "cvt.u32.u64 %r2, %rd1;",
            "cvt.s64.s32 %rd2, %rd1;",
            "mov.b64 {%r2, %r3}, %rd1;",
            "and.b64 %rd2, %rd1, 4294967295;",
            "shl.b64 %rd2, %rd1, 32;",
            "ld.param.b32 %r2, [fwd_param_0+48];",
            "ld.param.v2.u32 {%r2, %r3}, [fwd_param_0];",
        ] {
            assert_eq!(found(cut), [0], "{cut}");
        }
        assert_eq!(
            found("mul.lo.s64 %rd2, %rd1, %rd3;\nadd.s64 %rd4, %rd5, %rd2;\ncvt.u32.u64 %r2, %rd4;"),
            [2]
        );
        for fine in [
            "cvt.u64.u32 %rd2, %r1;\nmul.lo.s64 %rd3, %rd1, %rd2;\nld.global.b32 %r4, [%rd3];\ncvt.u16.u32 %rs1, %r4;",
            "and.b64 %rd2, %rd1, 127;\ncvt.u32.u64 %r2, %rd2;",
            "setp.lt.s64 %p1, %rd1, 0;\nselp.b32 %r2, 1, 2, %p1;",
            "mul.lo.s32 %r2, %r1, 3;\nshl.b32 %r3, %r2, 20;",
            "mov.b64 %rd2, {%r1, %r2};\nmov.b64 {%r3, %r4}, %rd2;",
        ] {
            assert_eq!(found(fine), [0_usize; 0], "{fine}");
        }
    }
}
