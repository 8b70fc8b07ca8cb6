//! Faults that are planted into compiled kernels by a change of their PTX: what a gate has to find, with no compiler of kernels at
//! hand. The driver compiles what comes out, so a planted kernel is real work on a real device.

use crate::error::{Error, Result};
use crate::kernels::{self, KernelRef};
use check::kernel_folder::KernelFolder;
use kernels_gpu::manifest::Kernel;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// What is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Plant {
    /// Right, and slower: further integer instructions in each step of the main loop, each waiting for the one before.
    Slower {
        /// So many.
        instructions: u32,
    },
    /// Exponentials are left out: P is the scores.
    NoExponential,
    /// Keys that nobody may see have a score of 0. Right where every key is seen.
    NothingHidden,
    /// O is computed and not written.
    NotWritten,
    /// It never ends.
    NeverEnds,
}

impl Plant {
    /// Every change after which the numbers are wrong.
    pub const WRONG: [Plant; 3] = [Plant::NoExponential, Plant::NothingHidden, Plant::NotWritten];

    /// The name in tables and folders.
    pub fn name(self) -> &'static str {
        match self {
            Plant::Slower { .. } => "slower",
            Plant::NoExponential => "no-exponential",
            Plant::NothingHidden => "nothing-hidden",
            Plant::NotWritten => "not-written",
            Plant::NeverEnds => "never-ends",
        }
    }

    /// The PTX of one entry with the fault; `None` where it has nothing to change.
    pub fn into_ptx(self, ptx: &str) -> Option<String> {
        match self {
            Plant::Slower { instructions } => slower(ptx, instructions),
            Plant::NoExponential => edit(ptx, |line| {
                let operands = line.trim_start().strip_prefix("ex2.approx")?;
                let (_, operands) = operands.split_once(char::is_whitespace)?;
                Some(format!("\tmov.b32 {operands}"))
            }),
            Plant::NothingHidden => edit(ptx, |line| {
                let is_masked = line.trim_start().starts_with("selp.") && line.contains(NEG_INFINITY);
                is_masked.then(|| line.replace(NEG_INFINITY, "0f00000000"))
            }),
            Plant::NotWritten => {
                edit(ptx, |line| line.trim_start().starts_with("st.global.v4").then(String::new))
            }
            Plant::NeverEnds => never_ends(ptx),
        }
    }
}

const NEG_INFINITY: &str = "0fFF800000";

/// Writes a folder with one kernel, which has the fault and its own name.
///
/// # Errors
/// [`Error::BadFile`] where its PTX has nothing to change; [`Error::Host`], [`Error::NoSuchRow`], [`Error::Io`].
pub fn plant(kernel: &KernelRef, what: Plant, out: &Path) -> Result<KernelRef> {
    let (library, found) = kernels::find(kernel)?;
    let bad = |reason: &str| Error::BadFile {
        path: kernel.folder.clone(),
        reason: format!("{}: {reason}", kernel.entry),
    };
    let ptx = library.kernel_ptx(&found)?;
    let text = what
        .into_ptx(&ptx)
        .ok_or_else(|| bad(&format!("its PTX has no place for `{}` to be planted", what.name())))?;
    let compiler = format!("{}, {} planted", library.device_compiler(), what.name());
    let write = || {
        let mut folder = KernelFolder::new(out, &compiler)?;
        folder.family(&found.family, &text)?;
        // What ptxas said and made was of the kernel without the fault.
        folder.kernel(Kernel {
            cubins: Default::default(),
            resources: Default::default(),
            ..Kernel::clone(&found)
        });
        folder.finish()
    };
    write().map_err(|source| Error::io(out, source))?;
    Ok(KernelRef { folder: out.to_owned(), entry: kernel.entry.clone() })
}

/// The text with every line changed that `change` has another for; `None` where it has none.
fn edit(ptx: &str, change: impl Fn(&str) -> Option<String>) -> Option<String> {
    let mut changes = 0;
    let mut text = String::new();
    for line in ptx.lines() {
        match change(line) {
            Some(other) => {
                changes += 1;
                text += &other;
            }
            None => text += line,
        }
        text.push('\n');
    }
    (changes > 0).then_some(text)
}

/// Lines to put in front of others, by the number of the line.
#[derive(Default)]
struct Insertions(BTreeMap<usize, String>);

impl Insertions {
    fn before(&mut self, line: usize, text: &str) {
        *self.0.entry(line).or_default() += text;
    }

    fn into_text(self, lines: &[&str]) -> String {
        let mut text = String::new();
        for (at, line) in lines.iter().enumerate() {
            text += self.0.get(&at).map_or("", String::as_str);
            text += line;
            text.push('\n');
        }
        text
    }
}

/// A chain of squares that runs through the whole kernel: nothing depends on it but a fence that is never reached, which no
/// compiler can know.
fn slower(ptx: &str, instructions: u32) -> Option<String> {
    let lines: Vec<&str> = ptx.lines().collect();
    let body = body(&lines)?;
    let steps = main_loops(&lines, &body);
    if steps.is_empty() {
        return None;
    }
    // A kernel that has one chain already gets another.
    let chain = format!("%planted{}", ptx.matches(".reg .b32 %planted").count());
    let mut inserted = Insertions::default();
    inserted.before(body.start, &format!("\t.reg .b32 {chain};\n\t.reg .pred {chain}_end;\n"));
    inserted.before(first_instruction(&lines, &body)?, &format!("\tmov.u32 {chain}, %tid.x;\n"));
    let link = format!("\tmad.lo.u32 {chain}, {chain}, {chain}, 12345;\n");
    for label in steps {
        inserted.before(label + 1, &link.repeat(instructions as usize));
    }
    let end = format!("\tsetp.eq.u32 {chain}_end, {chain}, 2654435769;\n\t@{chain}_end membar.cta;\n");
    let returns: Vec<usize> = body.filter(|&at| lines[at].trim() == "ret;").collect();
    returns.iter().for_each(|&at| inserted.before(at, &end));
    (!returns.is_empty()).then(|| inserted.into_text(&lines))
}

fn never_ends(ptx: &str) -> Option<String> {
    let lines: Vec<&str> = ptx.lines().collect();
    let first = first_instruction(&lines, &body(&lines)?)?;
    let mut inserted = Insertions::default();
    inserted.before(first, "$L_planted:\n\tbra $L_planted;\n");
    Some(inserted.into_text(&lines))
}

/// The lines of the entry's body, without its braces.
fn body(lines: &[&str]) -> Option<Range<usize>> {
    let entry = lines.iter().position(|line| line.contains(".entry "))?;
    let open = entry + lines[entry..].iter().position(|line| *line == "{")?;
    let close = open + lines[open..].iter().position(|line| *line == "}")?;
    Some(open + 1..close)
}

/// The first line of a body that is neither empty, nor a comment, nor a declaration.
fn first_instruction(lines: &[&str], body: &Range<usize>) -> Option<usize> {
    let is_instruction = |line: &str| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with("//") && !line.starts_with('.')
    };
    body.clone().find(|&at| is_instruction(lines[at]))
}

/// The label lines of the innermost loops that multiply matrices: the steps of the main loop, once for each of its copies.
fn main_loops(lines: &[&str], body: &Range<usize>) -> Vec<usize> {
    let label_of = |line: &str| line.trim().strip_suffix(':').map(str::to_owned);
    let labels: BTreeMap<String, usize> =
        body.clone().filter_map(|at| Some((label_of(lines[at])?, at))).collect();
    // From the label to the last branch back to it.
    let mut loops: BTreeMap<usize, usize> = BTreeMap::new();
    for at in body.clone() {
        let Some(target) = branch_target(lines[at]).and_then(|target| labels.get(target)) else { continue };
        if *target < at {
            loops.insert(*target, at);
        }
    }
    let multiplies = |from: usize, to: usize| lines[from..to].iter().any(|line| line.contains("mma."));
    loops.retain(|&from, to| multiplies(from, *to));
    let is_innermost = |from: &usize| {
        let to = loops[from];
        !loops.iter().any(|(&other, &end)| other > *from && end <= to)
    };
    loops.keys().copied().filter(is_innermost).collect()
}

/// The label that a line branches to.
fn branch_target(line: &str) -> Option<&str> {
    let mut words = line.trim().trim_end_matches(';').split_whitespace();
    words.find(|word| *word == "bra" || *word == "bra.uni")?;
    words.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shape of a kernel as rustc writes it: two copies of the main loop in an outer one, and a loop without products.
    const PTX: &str = "\
.version 7.4
.visible .entry k(
\t.param .b64 k_param_0
)
{
\t.reg .b32 \t%r<9>;

\t// begin
\tmov.u32 \t%r1, %tid.x;
$L_outer:
$L_masked:
\tmma.sync.x;
\tselp.f32 \t%r2, %r3, 0fFF800000, %p1;
\tex2.approx.ftz.f32 %r4, %r2;
\t@%p1 bra \t$L_masked;
$L_full:
\tmma.sync.x;
\tbra.uni \t$L_skip;
$L_skip:
\t@%p2 bra \t$L_full;
\t@%p3 bra \t$L_outer;
$L_copy:
\tst.global.v4.b32 [%rd1], {%r1, %r2, %r3, %r4};
\t@%p4 bra \t$L_copy;
\tret;
}
";

    fn planted(what: Plant) -> String {
        what.into_ptx(PTX).expect("a place")
    }

    #[test]
    fn a_slow_down_stands_in_each_copy_of_the_main_loop_and_nowhere_else() {
        let text = planted(Plant::Slower { instructions: 3 });
        let link = "mad.lo.u32 %planted0, %planted0, %planted0, 12345;";
        assert_eq!(text.matches(link).count(), 2 * 3, "{text}");
        for label in ["$L_masked:", "$L_full:"] {
            let (_, behind) = text.split_once(label).expect("the label");
            assert!(behind.trim_start().starts_with("mad.lo"), "{label} {text}");
        }
        let (before, behind) = text.split_once("@%planted0_end membar.cta;").expect("the end");
        assert!(behind.trim_start().starts_with("ret;") && before.contains("%planted0, %tid.x;"), "{text}");
        let declared = text.find(".reg .b32 %planted0;").expect("declared");
        assert!(declared < text.find("%planted0, %tid.x").expect("a beginning"), "{text}");
        let without: Vec<&str> = text.lines().filter(|line| !line.contains("%planted")).collect();
        assert_eq!(without, PTX.lines().collect::<Vec<_>>(), "all else is as it was");
        let twice = Plant::Slower { instructions: 1 }.into_ptx(&text).expect("a place");
        assert_eq!(twice.matches(".reg .b32 %planted0;").count(), 1);
        assert_eq!(twice.matches(".reg .b32 %planted1;").count(), 1);
    }

    #[test]
    fn each_fault_changes_what_it_names() {
        assert!(planted(Plant::NoExponential).contains("\tmov.b32 %r4, %r2;"));
        assert!(planted(Plant::NothingHidden).contains("selp.f32 \t%r2, %r3, 0f00000000, %p1;"));
        assert!(!planted(Plant::NotWritten).contains("st.global"));
        let hangs = planted(Plant::NeverEnds);
        let (before, _) = hangs.split_once("$L_planted:\n\tbra $L_planted;\n").expect("a loop");
        assert!(!before.contains("mov.u32"), "nothing is done before: {hangs}");
    }

    #[test]
    fn what_has_no_place_for_a_fault_is_told_apart() {
        let empty = ".visible .entry k()\n{\n\tret;\n}\n";
        for what in [Plant::Slower { instructions: 1 }, Plant::NoExponential, Plant::NothingHidden] {
            assert_eq!(what.into_ptx(empty), None, "{what:?}");
        }
        assert_eq!(Plant::NeverEnds.into_ptx("no entry"), None);
    }
}
