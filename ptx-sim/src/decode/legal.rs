//! Modifiers of one instruction that do not go together. A pattern of the table says which words an instruction has; these
//! rules say which of them exclude or need each other (PTX ISA §8, §9.7.9, §9.7.13), so that a program which ptxas refuses is
//! refused here too.

use super::Builder;
use super::lookup::Form;
use crate::error::LoadError;
use crate::table::family::Family;
use crate::table::pattern;

const SCOPES: &[&str] = &["cta", "cluster", "gpu", "sys"];
const ORDERS: &[&str] = &["relaxed", "acquire", "release"];
const HALVES: &[&str] = &["f16", "f16x2", "bf16", "bf16x2"];

/// The words of a mnemonic.
struct Words<'m>(Vec<&'m str>);

impl<'m> Words<'m> {
    fn has(&self, word: &str) -> bool {
        self.0.contains(&word)
    }

    fn any(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.has(word))
    }

    fn any_starts(&self, prefix: &str) -> bool {
        self.0.iter().any(|word| word.starts_with(prefix))
    }

    /// The element type, which is the last word that is one.
    fn ty(&self) -> &'m str {
        self.0.iter().rev().find(|word| is_type(word)).copied().unwrap_or("")
    }

    /// Bits of a scalar, or of all elements of a vector.
    fn bits(&self) -> u32 {
        let number = |text: &str| text.parse::<u32>().ok();
        let lanes = self.0.iter().find_map(|word| number(word.strip_prefix('v')?));
        number(self.ty().trim_start_matches(['b', 'u', 's', 'f'])).unwrap_or(1) * lanes.unwrap_or(1)
    }
}

fn is_type(word: &str) -> bool {
    let digits = word.trim_start_matches(['b', 'u', 's', 'f']);
    digits.len() < word.len() && digits.starts_with(|c: char| c.is_ascii_digit())
}

/// The least target that has a word, whatever the instruction.
fn needs(word: &str) -> Option<&'static str> {
    Some(match word {
        "bf16" | "bf16x2" | "tf32" | "L2::cache_hint" | "L2::256B" => "sm_80",
        "createpolicy" | "discard" | "applypriority" => "sm_80",
        "xorsign" => "sm_86",
        "e4m3" | "e5m2" | "e4m3x2" | "e5m2x2" => "sm_89",
        "cluster" | "shared::cluster" => "sm_90",
        "f32x2" => "sm_100",
        _ => return None,
    })
}

impl Builder<'_, '_> {
    /// Refuses an instruction that the module's target does not have, or whose modifiers do not go together.
    pub(super) fn check_legal(&mut self, form: &Form<'_>) -> Result<(), LoadError> {
        if self.lookup.is_legal(self.mnemonic) {
            return Ok(());
        }
        pattern::parts(self.mnemonic).filter_map(needs).try_for_each(|least| self.check_target(least))?;
        if let Form::Family(family, _, least) = form {
            self.check_target(least)?;
            self.check_modifiers(*family)?;
        }
        self.lookup.set_legal(self.mnemonic);
        Ok(())
    }

    /// Refuses modifiers that do not go together.
    fn check_modifiers(&self, family: Family) -> Result<(), LoadError> {
        let words = Words(pattern::parts(self.mnemonic).collect());
        let rule = match family {
            Family::Load | Family::LoadUniform | Family::Store => {
                if words.bits() > 128 {
                    self.check_target("sm_100")?;
                }
                access(&words)
            }
            Family::Atomic | Family::Reduce => atomic(&words),
            Family::BulkReduce | Family::PeerReduce | Family::ReduceAsync => reduction(family, &words),
            Family::Set | Family::SetPair => comparison(&words),
            Family::Barrier | Family::BarrierReduce if words.has("bar") && words.has("aligned") => {
                Some("`bar` is aligned without saying so; `barrier` takes .aligned")
            }
            Family::MbarrierArrive
            | Family::MbarrierArriveExpect
            | Family::MbarrierExpect
            | Family::MbarrierComplete
            | Family::MbarrierWait
                if words.any(ORDERS) != words.any(SCOPES) =>
            {
                Some("a memory order and a scope need each other")
            }
            Family::BulkLoad | Family::TensorLoad
                if words.has("multicast::cluster") && words.has("shared::cta") =>
            {
                Some(".multicast::cluster needs .shared::cluster")
            }
            Family::Cvt if words.has("ftz") && !words.has("f32") => Some(".ftz is for f32"),
            _ => None,
        };
        rule.map_or(Ok(()), |rule| Err(self.modifiers(rule)))
    }

    fn modifiers(&self, rule: &'static str) -> LoadError {
        LoadError::Modifiers { line: self.line, instruction: self.mnemonic.to_owned(), rule }
    }
}

/// What is wrong with the modifiers of `ld` and `st`.
fn access(words: &Words<'_>) -> Option<&'static str> {
    let ordered = words.any(ORDERS);
    let volatile = words.any(&["volatile", "mmio"]);
    let cached = words.any(&["ca", "cg", "cs", "lu", "cv", "wb", "wt"]);
    let prioritised = words.any_starts("L1::") || words.any(&["L2::evict_last", "L2::evict_first"]);
    let hinted = prioritised || words.any_starts("L2::");
    let near = words.any(&["local", "const"]) || words.any_starts("param");
    let uncached = near || words.any_starts("shared");
    Some(match () {
        () if ordered && !words.any(SCOPES) => ".relaxed, .acquire and .release need a scope",
        () if !ordered && words.any(SCOPES) => "a scope needs .relaxed, .acquire or .release",
        () if words.has("mmio") && !(words.has("relaxed") && words.has("sys")) => ".mmio needs .relaxed.sys",
        () if words.has("mmio") && uncached => ".mmio is for global memory",
        () if (ordered || volatile) && near => "strong accesses are for global and shared memory",
        () if (ordered || volatile) && cached => "cache operators are for weak accesses",
        () if cached && prioritised => "a cache operator and an eviction priority exclude each other",
        () if volatile && (prioritised || words.has("L2::cache_hint")) => "a volatile access takes no hint",
        () if hinted && uncached => "cache hints are for global memory",
        () if words.bits() > 128 && uncached => "a vector of more than 16 bytes lies in global memory",
        () if words.has("nc") && (ordered || volatile || words.has("weak")) => ".nc takes no memory order",
        () if words.has("nc") && !words.has("global") => ".nc needs .global",
        () => return None,
    })
}

/// What is wrong with the modifiers of `atom` and `red`.
fn atomic(words: &Words<'_>) -> Option<&'static str> {
    let (ty, vector) = (words.ty(), words.any(&["v2", "v4", "v8"]));
    let halves = HALVES.contains(&ty);
    let shared = words.any_starts("shared");
    Some(match () {
        () if words.has("add") && halves && !words.has("noftz") => "sums of halves need .noftz",
        () if words.has("noftz") && !halves => ".noftz is for halves",
        () if shared && vector => "vectors are for global memory",
        () if shared && words.has("L2::cache_hint") => "cache hints are for global memory",
        () if words.has("add") && ty == "s64" => "sums of 64 bits are of .u64",
        () if words.any(&["min", "max"]) && (matches!(ty, "f32" | "f64") || halves && !vector) => {
            "minima and maxima of this type do not exist"
        }
        () if vector && halves && !words.has("noftz") => "operations on halves need .noftz",
        () if vector && ty == "f64" => "there are no vectors of this type",
        () if words.has("v8") && matches!(ty, "f32" | "f16x2" | "bf16x2") => "the vector is too long",
        () => return None,
    })
}

/// What is wrong with the operation and the type of an asynchronous reduction (PTX ISA §9.7.9.25.4.2, §9.7.13.7).
fn reduction(family: Family, words: &Words<'_>) -> Option<&'static str> {
    let ty = words.ty();
    let global = family == Family::BulkReduce;
    let fits = match () {
        () if words.has("add") && global => {
            matches!(ty, "u32" | "s32" | "u64" | "f16" | "bf16" | "f32" | "f64")
        }
        () if words.has("add") => matches!(ty, "u32" | "s32" | "u64" | "s64"),
        () if words.any(&["min", "max"]) && global => {
            matches!(ty, "u32" | "s32" | "u64" | "s64" | "f16" | "bf16")
        }
        () if words.any(&["min", "max"]) => matches!(ty, "u32" | "s32"),
        () if words.any(&["inc", "dec"]) => ty == "u32",
        () if global => matches!(ty, "b32" | "b64"),
        () => ty == "b32",
    };
    let halves_added = words.has("add") && HALVES.contains(&ty);
    Some(match () {
        () if !fits => "the operation does not exist for this type",
        () if halves_added != words.has("noftz") => ".noftz is for sums of halves, which need it",
        () if family == Family::ReduceAsync && !(words.has("relaxed") && words.any(SCOPES)) => {
            "it needs .relaxed and a scope"
        }
        () => return None,
    })
}

/// What is wrong with a comparison and the type that it compares.
fn comparison(words: &Words<'_>) -> Option<&'static str> {
    let ty = words.ty();
    let floats = ty.contains('f');
    let of_floats = words.any(&["equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]);
    let of_unsigned = words.any(&["lo", "ls", "hi", "hs"]);
    let of_order = words.any(&["lt", "le", "gt", "ge"]);
    let mismatch = of_floats && !floats
        || of_unsigned && !ty.starts_with('u')
        || ty.starts_with('b') && !floats && (of_order || of_unsigned);
    Some(match () {
        () if mismatch => "the comparison does not exist for this type",
        () if words.has("ftz") && !matches!(ty, "f32" | "f16" | "f16x2") => ".ftz is for f32 and f16",
        () => return None,
    })
}

#[cfg(test)]
mod tests {
    use crate::Module;

    /// What is said of one instruction; empty if it is taken.
    fn verdict(target: &str, instruction: &str) -> String {
        let text = format!(
            ".version 9.0\n.target {target}\n.address_size 64\n.visible .entry k() {{\n.reg .pred %p<4>; .reg .b16 %h<9>; \
             .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<9>; .reg .b128 %q<3>;\n{instruction};\nret;\n}}"
        );
        Module::parse(&text).err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_ptxas_takes_is_taken() {
        for instruction in [
            "ld.relaxed.gpu.global.L1::no_allocate.L2::cache_hint.u32 %r1, [%d1], %d2",
            "ld.volatile.shared::cluster.u32 %r1, [%r2]",
            "ld.mmio.relaxed.sys.global.u32 %r1, [%d1]",
            "ld.global.nc.L1::evict_last.L2::256B.v4.u32 {%r1, %r2, %r3, %r4}, [%d1]",
            "ld.cg.global.L2::cache_hint.b64 %d1, [%d1], %d2",
            "ld.weak.local.ca.u32 %r1, [%r2]",
            "ld.acquire.cta.v8.u8 {%h1, %h2, %h3, %h4, %h5, %h6, %h7, %h8}, [%d1]",
            "st.release.sys.global.L1::evict_first.v2.b64 [%d1], {%d2, %d3}",
            "atom.global.add.noftz.f16x2 %r1, [%d1], %r2",
            "red.global.v4.bf16x2.max.noftz [%d1], {%r1, %r2, %r3, %r4}",
            "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.s64 [%r1], %d1, [%r2]",
            "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p1, [%r1], %r2",
            "set.ltu.u32.f32 %r1, %f1, %f2",
            "barrier.sync.aligned 0",
        ] {
            assert_eq!(verdict("sm_90a", instruction), "", "{instruction}");
        }
        assert_eq!(verdict("sm_100", "ld.global.v4.b64 {%d1, %d2, %d3, %d4}, [%d5]"), "");
    }

    #[test]
    fn what_ptxas_refuses_is_refused_with_the_rule() {
        for (instruction, rule) in [
            ("ld.acquire.global.u32 %r1, [%d1]", "need a scope"),
            ("st.gpu.global.u32 [%d1], %r1", "a scope needs"),
            ("ld.volatile.gpu.global.u32 %r1, [%d1]", "a scope needs"),
            ("ld.volatile.local.u32 %r1, [%r2]", "strong accesses"),
            ("ld.relaxed.gpu.cg.global.u32 %r1, [%d1]", "weak accesses"),
            ("ld.cs.global.L1::evict_last.u32 %r1, [%d1]", "exclude each other"),
            ("ld.shared.L2::cache_hint.u32 %r1, [%r2], %d2", "global memory"),
            ("ld.relaxed.gpu.global.nc.u32 %r1, [%d1]", ".nc takes no"),
            ("ld.nc.u32 %r1, [%d1]", ".nc needs .global"),
            ("ld.global.v4.u64 {%d1, %d2, %d3, %d4}, [%d5]", "needs .target sm_100"),
            ("ld.volatile.v8.u32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%d5]", "needs .target sm_100"),
            ("atom.global.add.f16x2 %r1, [%d1], %r2", ".noftz"),
            ("red.shared.v2.f32.add [%r1], {%f1, %f2}", "global memory"),
            ("red.async.mbarrier::complete_tx::bytes.add.u32 [%r1], %r2, [%r3]", ".relaxed and a scope"),
            (
                "cp.reduce.async.bulk.global.shared::cta.bulk_group.and.s32 [%d1], [%r1], 16",
                "does not exist for this type",
            ),
            ("mbarrier.test_wait.acquire.shared::cta.b64 %p1, [%r1], %d2", "need each other"),
            ("set.lt.u32.b32 %r1, %r2, %r3", "does not exist for this type"),
            ("bar.sync.aligned 0", "barrier"),
        ] {
            let said = verdict("sm_90a", instruction);
            assert!(said.contains(rule), "{instruction}: {said}");
        }
        for (target, instruction, rule) in [
            ("sm_75", "add.rn.bf16x2 %r1, %r2, %r3", "sm_80"),
            ("sm_80", "min.xorsign.abs.f16x2 %r1, %r2, %r3", "sm_86"),
            ("sm_86", "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2", "sm_89"),
            ("sm_80", "red.relaxed.cluster.global.add.u32 [%d1], %r1", "sm_90"),
            ("sm_90", "add.rn.f32x2 %d1, %d2, %d3", "sm_100"),
        ] {
            let said = verdict(target, instruction);
            assert!(said.contains(&format!("needs .target {rule},")), "{instruction}: {said}");
        }
    }
}
