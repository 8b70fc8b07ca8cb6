//! Inversion: flaws that are put into a kernel on purpose. What each costs, measured, ranks what a kernel's speed hangs on.
//!
//! A flaw keeps results right. It is another row, or a patch to the device crate, kept in `lab/flaws/`. A test applies them all:
//! where one no longer fits, make the change by hand and keep `git diff -U1 --no-color kernels-gpu` in its place.

use crate::kernels::Counted;
use crate::statistics::Interval;
use crate::table::Table;
use kernels_gpu::row::Row;
use serde::Serialize;

/// How a flaw is put in.
#[derive(Clone, Copy, Debug)]
pub enum FlawChange {
    /// Another row; none where the row has the flaw already, or cannot have it.
    Row(fn(&Row) -> Option<Row>),
    /// A patch to the device crate, from the repository's root.
    Patch(&'static str),
}

/// One flaw.
#[derive(Clone, Copy, Debug)]
pub struct Flaw {
    /// Its name.
    pub name: &'static str,
    /// What is done to the kernel.
    pub what: &'static str,
    /// Counters that it should raise; none where only time can show it.
    pub raises: &'static [&'static str],
    /// Whether it shows under the causal mask only.
    pub causal_only: bool,
    /// How it is put in.
    pub change: FlawChange,
}

macro_rules! patch {
    ($name:literal) => {
        FlawChange::Patch(include_str!(concat!("../flaws/", $name, ".patch")))
    };
}

/// Every flaw.
pub const FLAWS: [Flaw; 15] = [
    Flaw {
        name: "no-swizzle",
        what: "Rows lie in shared memory as they are, so that a column of chunks falls into one bank group.",
        raises: &["shared_load.conflicts", "shared_load.wavefronts"],
        causal_only: false,
        change: patch!("no-swizzle"),
    },
    Flaw {
        name: "uncoalesced-copies",
        what: "Neighbouring threads copy chunks of different rows.",
        raises: &["async_global.lines"],
        causal_only: false,
        change: patch!("uncoalesced-copies"),
    },
    Flaw {
        name: "no-staging",
        what: "Every warp reads its operands of K from global memory, not from the CTA's copy in shared memory.",
        raises: &["global_load.sectors"],
        causal_only: false,
        change: patch!("no-staging"),
    },
    Flaw {
        name: "extra-barrier",
        what: "All warps meet twice more in each main-loop step.",
        raises: &["barriers"],
        causal_only: false,
        change: patch!("extra-barrier"),
    },
    Flaw {
        name: "always-rescale",
        what: "O and row_sum are rescaled in every step, not only where row_max grew.",
        raises: &["instructions.float"],
        causal_only: false,
        change: patch!("always-rescale"),
    },
    Flaw {
        name: "divergent-branch",
        what: "Rows decide by themselves whether to rescale, every second one always, so that the lanes of a warp part in each step.",
        raises: &["divergent_branches"],
        causal_only: false,
        change: patch!("divergent-branch"),
    },
    Flaw {
        name: "masks-in-every-block",
        what: "Every block of keys is masked, also those that all rows see.",
        raises: &["instructions.integer"],
        causal_only: false,
        change: patch!("masks-in-every-block"),
    },
    Flaw {
        name: "hidden-blocks-visited",
        what: "Blocks of keys that the causal mask hides are computed all the same.",
        raises: &["tensor_flops"],
        causal_only: true,
        change: patch!("hidden-blocks-visited"),
    },
    Flaw {
        name: "short-work-first",
        what: "Causal CTAs with the least work start first, and the longest end last.",
        raises: &[],
        causal_only: true,
        change: patch!("short-work-first"),
    },
    Flaw {
        name: "q-read-again",
        what: "Q is read from shared memory again in each step.",
        raises: &["shared_load.wavefronts"],
        causal_only: false,
        change: patch!("q-read-again"),
    },
    Flaw {
        name: "over-unrolled",
        what: "The main loop is unrolled four times, past the instruction cache.",
        raises: &[],
        causal_only: false,
        change: patch!("over-unrolled"),
    },
    Flaw {
        name: "one-stage",
        what: "K and V have one buffer: copies wait for the products, and the products for copies.",
        raises: &["barriers"],
        causal_only: false,
        change: FlawChange::Row(|row| feasible(row, Row { stages: 1, ..*row })),
    },
    Flaw {
        name: "tiny-blocks",
        what: "Blocks of 32 rows and 32 keys: K and V are read again for every 32 rows.",
        raises: &["async_global.sectors"],
        causal_only: false,
        change: FlawChange::Row(|row| feasible(row, Row { block_m: 32, block_n: 32, warps: 4, ..*row })),
    },
    Flaw {
        name: "warps-split-keys",
        what: "Twice the warps: they share the rows of a block, and merge O after the main loop.",
        raises: &["warp_instructions"],
        causal_only: false,
        change: FlawChange::Row(|row| feasible(row, Row { warps: 2 * row.warps, ..*row })),
    },
    Flaw {
        name: "registers-capped",
        what: "As many CTAs an SM as the resource model allows at all: what does not fit into registers spills.",
        raises: &["local_bytes"],
        causal_only: false,
        change: FlawChange::Row(|row| {
            (row.min_ctas + 1..=8).rev().find_map(|min_ctas| feasible(row, Row { min_ctas, ..*row }))
        }),
    },
];

/// The row with a flaw, if a kernel can be made of it and it is another one.
fn feasible(row: &Row, flawed: Row) -> Option<Row> {
    (flawed != *row && flawed.check().is_ok()).then_some(flawed)
}

/// What a flaw costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Damage {
    /// The flaw.
    pub flaw: &'static str,
    /// What was done.
    pub what: &'static str,
    /// How many times more, by which flaws are ranked: of time, or of the clocks that a multiprocessor's units need.
    pub factor: Interval,
    /// The counter that rose most among those that should. Counters are unlike, so nothing is ranked by them.
    pub counter: String,
}

impl Flaw {
    /// The damage on counters of a launch without and with the flaw; none where only time can show it, or nothing was counted.
    pub fn damage_on_counters(&self, without: &Counted, with: &Counted) -> Option<Damage> {
        let rise = |name: &'static str| {
            let (before, after) = (without.numbers.get(name)?, with.numbers.get(name)?);
            // One more than each, as conflicts and local memory begin at none.
            Some(((after as f64 + 1.0) / (before as f64 + 1.0), name, before, after))
        };
        // A counter that was 0 has no factor that says anything; it counts where there is no other.
        let order = |a: &(f64, _, u64, u64), b: &(f64, _, u64, u64)| {
            (a.2 > 0).cmp(&(b.2 > 0)).then(a.0.total_cmp(&b.0))
        };
        let (_, name, before, after) =
            self.raises.iter().copied().filter_map(rise).max_by(|a, b| order(a, b))?;
        let factor = Interval::exact(with.clocks / without.clocks);
        Some(Damage {
            flaw: self.name,
            what: self.what,
            factor,
            counter: format!("{name} {before} → {after}"),
        })
    }

    /// The damage on time: how many times longer it takes with the flaw.
    pub fn damage_on_time(&self, factor: Interval) -> Damage {
        Damage { flaw: self.name, what: self.what, factor, counter: String::new() }
    }
}

/// The damages, the worst first; `measured` is what the factors are of.
pub fn table(damages: &[Damage], measured: &str) -> Table {
    let mut ranked: Vec<&Damage> = damages.iter().collect();
    ranked.sort_by(|a, b| b.factor.estimate.total_cmp(&a.factor.estimate));
    let mut table =
        Table::new(&["flaw", &format!("× {measured}"), "from", "to", "its counter", "what was done"]);
    for Damage { flaw, what, factor, counter } in ranked {
        let [estimate, low, high] =
            [factor.estimate, factor.low, factor.high].map(|number| format!("{number:.3}"));
        let range = if low == high { [String::new(), String::new()] } else { [low, high] };
        let [from, to] = range;
        table.add(vec![(*flaw).to_owned(), estimate, from, to, counter.clone(), (*what).to_owned()]);
    }
    table.without_empty_columns()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem_spec::{Mask, ProblemSpec};
    use kernels_gpu::row::Dtype;
    use kernels_gpu::table::VARIANTS;
    use std::io::Write;
    use std::path::Path;
    use std::process::{Command, Stdio};

    #[test]
    fn every_patch_applies_to_the_device_crate() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
        for flaw in FLAWS {
            let FlawChange::Patch(patch) = flaw.change else { continue };
            assert!(
                patch
                    .lines()
                    .filter(|line| line.starts_with("+++"))
                    .all(|line| line.starts_with("+++ b/kernels-gpu/"))
            );
            let mut git = Command::new("git")
                .args(["apply", "--check", "-"])
                .current_dir(root)
                .stdin(Stdio::piped())
                .spawn()
                .expect("git");
            git.stdin.take().expect("a pipe").write_all(patch.as_bytes()).expect("written");
            assert!(git.wait().expect("git").success(), "{} does not apply", flaw.name);
        }
    }

    #[test]
    fn every_patch_file_is_a_flaw_and_names_are_unique() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("flaws");
        let patches = FLAWS.iter().filter(|flaw| matches!(flaw.change, FlawChange::Patch(_))).count();
        assert_eq!(std::fs::read_dir(folder).expect("the folder").count(), patches);
        let names: std::collections::HashSet<&str> = FLAWS.iter().map(|flaw| flaw.name).collect();
        assert_eq!(names.len(), FLAWS.len());
    }

    #[test]
    fn flawed_rows_are_other_rows_that_compile_and_each_flaw_has_one() {
        for flaw in FLAWS {
            let FlawChange::Row(change) = flaw.change else { continue };
            let mut flawed = 0;
            for variant in VARIANTS {
                if let Some(row) = change(&variant.row) {
                    assert!(row != variant.row && row.check().is_ok(), "{} {}", flaw.name, variant.entry);
                    flawed += 1;
                }
            }
            assert!(flawed > 0, "{} fits no row of the table", flaw.name);
        }
    }

    #[test]
    fn flaws_are_ranked_by_what_is_alike_and_what_only_time_shows_has_no_count() {
        let shape = "1,1,1,64,64,64".parse().expect("a shape");
        let problem = ProblemSpec { shape, dtype: Dtype::F16, mask: Mask::Full };
        let counted = |clocks, numbers: &[(&str, u64)]| Counted {
            problem,
            ctas: 1,
            clocks,
            numbers: numbers.iter().copied().collect(),
        };
        let without = counted(
            100.0,
            &[("barriers", 99), ("shared_load.conflicts", 0), ("shared_load.wavefronts", 999)],
        );
        let slower = counted(300.0, &[("shared_load.conflicts", 6999), ("shared_load.wavefronts", 1999)]);
        let waiting = counted(110.0, &[("barriers", 9999)]);
        let flaw = |name: &str| FLAWS.into_iter().find(|flaw| flaw.name == name).expect("a flaw");
        assert_eq!(flaw("over-unrolled").damage_on_counters(&without, &slower), None);
        let damages = [
            flaw("extra-barrier").damage_on_counters(&without, &waiting).expect("counted"),
            flaw("no-swizzle").damage_on_counters(&without, &slower).expect("counted"),
        ];
        let text = table(&damages, "clocks").markdown();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].starts_with("| no-swizzle | 3.000 | shared_load.wavefronts 999 → 1999 |"), "{text}");
        assert!(lines[3].starts_with("| extra-barrier | 1.100 | barriers 99 → 9999 |"), "{text}");
    }
}
