//! The code that a launch of a kernel runs: its own entry, and the kernel that merges its splits. Both are the candidate's.

use super::narrowed::narrowed;
use super::{ADDRESS, GPUS, HostResult, Machine, open, statements};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::exam::Question;
use crate::exam::question::{Launched, Literals, Paths, Placement};
use crate::proposer::hygiene;
use check::verification::{RaggedSketch, ragged_wants_lse};
use ferroflash::Attention;
use ferroflash::module::{Library, sha256_hex};
use ferroflash::plan::{Addresses, Plan};
use ferroflash::problem::Operand;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::params::WgmmaParams;
use kernels_gpu::row::Isa;
use kernels_gpu::steps::StepRow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The PTX of every entry that a launch of a kernel runs.
#[derive(Clone, Debug)]
pub struct LaunchCode {
    /// That of the kernel itself.
    forward: String,
    /// Those of the folder's kernels that merge its splits, where it splits keys: entry and PTX.
    combine: Vec<(String, String)>,
}

impl LaunchCode {
    /// Reads it.
    ///
    /// # Errors
    /// [`Error::Host`], also where the PTX lacks an entry.
    pub fn read(library: &Library, kernel: &Kernel) -> Result<LaunchCode> {
        let merges = |row: StepRow| kernel.row.schedule.splits() && row == StepRow::combine(kernel.row.dtype);
        let combine = library.step_kernels().iter().filter(|step| merges(step.row));
        let read = |step: &Arc<Kernel<StepRow>>| Ok((step.entry.clone(), library.kernel_ptx(step)?));
        let combine = combine.map(read).collect::<HostResult<_>>()?;
        Ok(LaunchCode { forward: library.kernel_ptx(kernel)?, combine })
    }

    /// Its statements, for telling which of another kernel's it has too.
    fn statements(&self) -> BTreeSet<u64> {
        let all = std::iter::once(&self.forward).chain(self.combine.iter().map(|(_, ptx)| ptx));
        all.flat_map(|ptx| statements(ptx)).collect()
    }

    /// Where the kernel cuts pointers or strides to 32 bits and `own`, of the same row, does not, in words: more often by an operation than that
    /// does, and of something else.
    pub fn narrows(&self, own: &LaunchCode, isa: Isa) -> Option<String> {
        let known = own.statements();
        let statements = statements(&self.forward);
        let [cuts, before] = [&self.forward, &own.forward].map(|ptx| {
            let lines: Vec<&str> = ptx.lines().collect();
            let operation = |at: usize| (at, without_registers(lines[at]));
            narrowed(ptx, isa).into_iter().map(operation).collect::<Vec<_>>()
        });
        let count = |cuts: &[(usize, String)], by: &str| cuts.iter().filter(|(_, other)| other == by).count();
        let is_new = |(at, by): &&(usize, String)| {
            !known.contains(&statements[*at]) && count(&cuts, by) > count(&before, by)
        };
        let (at, _) = cuts.iter().find(is_new)?;
        let text = self.forward.lines().nth(*at).unwrap_or_default().trim();
        Some(format!(
            "line {} of its PTX, `{text}`, cuts what follows from a pointer or a stride to 32 bits: tensors may have more than 4 GB",
            at + 1
        ))
    }

    /// The numbers that any of it compares what follows from its parameters with.
    pub fn literals(&self) -> Literals {
        let of_combine = self.combine.iter().map(|(_, ptx)| Literals::of_combine(ptx));
        of_combine.fold(Literals::of_ptx(&self.forward), Literals::and)
    }

    /// What any of it has that no kernel may have: variables that outlive a launch, clocks, and registers that tell where it runs.
    pub fn outlives_a_launch(&self) -> Option<String> {
        let of_combine = self
            .combine
            .iter()
            .map(|(entry, ptx)| (format!("the PTX of {entry}, which merges its splits,"), ptx));
        let mut all = std::iter::once(("its PTX".to_owned(), &self.forward)).chain(of_combine);
        all.find_map(|(whose, ptx)| {
            let what = hygiene::in_ptx(ptx)?;
            let Some(variable) = hygiene::variable_in_ptx(ptx, what) else { return Some(format!("{whose} has `{what}`")) };
            Some(format!(
                "{whose} has the {what} variable `{variable}`; a constant table whose address is taken becomes such a variable, \
                 so compute its values or choose them by `match`"
            ))
        })
    }
}

/// SHA-256 of a kernel's code: equal for kernels that only their names tell apart, and for those that only ask for other numbers of CTAs
/// where that makes no difference: on the simulator, and where ptxas gives both the same registers.
///
/// # Errors
/// [`Error::Host`], also where the PTX lacks the entry.
pub fn ptx_hash(library: &Library, kernel: &Kernel, machine: &Machine) -> Result<String> {
    let LaunchCode { forward, combine } = LaunchCode::read(library, kernel)?;
    let text = without_comments(&forward.replace(&kernel.entry, "entry"));
    let resources = machine.resources(kernel);
    let code = if !machine.simulated && resources.is_none() {
        text
    } else {
        let is_bound = |line: &&str| line.trim_start().starts_with(".minnctapersm");
        let code: Vec<&str> = text.lines().filter(|line| !is_bound(line)).collect();
        format!("{}\n{resources:?}", code.join("\n"))
    };
    let merging: String = combine.into_iter().map(|(_, ptx)| without_comments(&ptx)).collect();
    Ok(sha256_hex(format!("{code}{merging}").as_bytes()))
}

/// A statement without the names of its registers and labels.
fn without_registers(line: &str) -> String {
    let word =
        |word: &str| if word.contains('%') || word.contains('$') { "_".to_owned() } else { word.to_owned() };
    statements::words(line).into_iter().map(word).collect::<Vec<_>>().join(" ")
}

/// PTX without comments and blanks, which make no other kernel.
fn without_comments(ptx: &str) -> String {
    let lines = ptx.lines().map(|line| match line.trim() {
        // An instruction on newer devices.
        comment if comment.starts_with("// sm_") => comment,
        line => line.split_once("//").map_or(line, |(code, _)| code).trim_end(),
    });
    lines.filter(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect()
}

/// What of a kernel's code a question reaches, as far as the parameters of its launches decide: on a simulated device, whatever runs it.
pub struct Reach {
    forward: Paths,
    combine: Option<Paths>,
    kernel: Arc<Kernel>,
    /// Of a device like the usual one, and of one with few multiprocessors.
    hosts: [Attention; 2],
}

impl Reach {
    /// Reads a kernel's code.
    ///
    /// # Errors
    /// [`Error::Host`].
    pub fn new(library: &Arc<Library>, kernel: &Arc<Kernel>, code: &LaunchCode) -> Result<Reach> {
        let machine = Machine::simulating(kernel.row.isa);
        let host = |few_sms| open(library, kernel, &machine, few_sms);
        Ok(Reach {
            forward: Paths::of_ptx(&code.forward),
            combine: code.combine.first().map(|(_, ptx)| Paths::of_ptx(ptx)),
            kernel: kernel.clone(),
            hosts: [host(false)?, host(true)?],
        })
    }

    /// The plan of a question, where the kernel can answer it.
    fn plan(&self, question: &Question) -> Option<Plan> {
        let planner = self.hosts[usize::from(question.few_sms)].planner();
        let options = question.options(&self.kernel.row);
        planner.with_kernel(&question.problem().ok()?, &self.kernel, &options).ok()
    }

    /// By numbers, those of the first CTA, the last, and one between, of each launch; nothing where the kernel cannot answer the question.
    pub fn of(&self, question: &Question) -> Vec<u32> {
        let Some(plan) = self.plan(question) else { return Vec::new() };
        self.of_plan(&plan, &addresses(question, &plan))
    }

    /// The same of a ragged batch.
    pub fn of_ragged(&self, batch: &RaggedSketch) -> Vec<u32> {
        let planner = self.hosts[0].planner();
        let Ok(plan) = planner.with_kernel(&batch.problem, &self.kernel, &batch.options) else {
            return Vec::new();
        };
        self.of_plan(&plan, &ragged_addresses(&plan))
    }

    fn of_plan(&self, plan: &Plan, at: &Addresses) -> Vec<u32> {
        let forward = plan.params(at);
        let params = match self.kernel.row.isa {
            Isa::Mma => forward.to_bytes().to_vec(),
            Isa::Wgmma => WgmmaParams { forward, ..WgmmaParams::default() }.to_bytes().to_vec(),
        };
        let mut found = reached(&self.forward, &params, plan.grid());
        if let (Some(combine), Some(_)) = (&self.combine, plan.combine()) {
            let params = plan.combine_params(at).to_bytes();
            let behind = self.forward.numbers();
            let of_combine = reached(combine, &params, plan.combine_grid());
            found.extend(of_combine.into_iter().map(|number| behind + number));
        }
        found
    }
}

/// What three CTAs of a launch reach.
fn reached(paths: &Paths, params: &[u8], grid: u32) -> Vec<u32> {
    let ctas = [0, grid - 1, grid / 2];
    ctas.into_iter().flat_map(|cta| paths.reached(&Launched { params, grid, cta })).collect()
}

/// Tensors far from each other, as of allocations.
fn addresses(question: &Question, plan: &Plan) -> Addresses {
    let first = if question.few_sms { GPUS } else { ADDRESS };
    let at = |number: u64| first + (number << 32);
    let [q, k, v, o] = question.offsets();
    let if_wanted = |is_wanted, number| if is_wanted { at(number) } else { 0 };
    Addresses {
        q: at(0) + q as u64,
        k: at(1) + k as u64,
        v: if question.placement == Placement::OneTensor { at(1) + k as u64 } else { at(2) + v as u64 },
        o: at(3) + o as u64,
        lse: if_wanted(question.lse, 4),
        seqlens_k: if_wanted(question.lengths, 5),
        workspace: if_wanted(plan.workspace_bytes() > 0, 6),
        ..Addresses::default()
    }
}

/// The same of a ragged batch as it is examined: each tensor begins 16 bytes behind an allocation.
fn ragged_addresses(plan: &Plan) -> Addresses {
    let problem = plan.problem();
    let at = |number: u64| ADDRESS + (number << 32) + 16;
    let if_has = |has: bool, number| if has { at(number) } else { 0 };
    let mut operands = [0; Operand::ALL.len()];
    for operand in Operand::ALL {
        operands[operand as usize] = if_has(problem.operand_len(operand).is_some(), 7 + operand as u64);
    }
    Addresses {
        q: at(0),
        k: at(1),
        v: at(2),
        o: at(3),
        lse: if_has(ragged_wants_lse(problem), 4),
        seqlens_k: if_has(problem.has_lengths(), 5),
        workspace: if_has(plan.workspace_bytes() > 0, 6),
        operands,
        ..Addresses::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exam::question::{Code, draw};
    use crate::kernels::find_in;
    use check::kernel_folder::KernelFolder;
    use ferroflash::module::kernels_of_table;
    use kernels_gpu::params::CombineParams;
    use kernels_gpu::row::Schedule;

    #[test]
    fn ptx_that_keeps_or_tells_something_is_found_and_comments_are_not() {
        let (kernels, _) = kernels_of_table();
        let kernel = Kernel::clone(&kernels[0]);
        let found = |before: &str, body: &str| {
            let home = tempfile::tempdir().expect("a folder");
            let mut folder = KernelFolder::new(home.path(), "by hand").expect("a folder");
            let entry = &kernel.entry;
            let ptx = format!(
                ".version 7.4\n.target sm_80\n.address_size 64\n{before}\n.visible .entry {entry}(\n)\n{{\n{body}\nret;\n}}\n"
            );
            folder.family("sm_80", &ptx).expect("written");
            folder.kernel(kernel.clone());
            folder.finish().expect("written");
            let library = Library::open(home.path()).expect("a folder of kernels");
            let own = find_in(&library, entry).expect("there");
            LaunchCode::read(&library, &own).expect("readable").outlives_a_launch()
        };
        assert_eq!(found("", "st.global.f32 [%rd1], %f1; // .global .u32 x, %clock"), None);
        let said = found(".visible .global .align 4 .u32 seen[4] = {1, 2, 3, 4};", "").expect("found");
        assert!(said.contains("the .global variable `seen`;"), "{said}");
        assert_eq!(found("/* // */ .global\t.u32 seen;", ""), Some("its PTX has `/*`".to_owned()));
        assert!(found("// */\n.global\t.u32 seen;", "").is_some_and(|said| said.contains("variable `seen`")));
        assert!(found("", "} .common .global .u32 seen; .func f() {").is_some());
        assert!(
            found(".const .f32 table[4];", "")
                .is_some_and(|said| said.contains("the .const variable `table`;"))
        );
        assert_eq!(found("", "ld.global.f32 %f1, [%rd1]; // %clock\n cvta.to.global.u64 %rd2, %rd1;"), None);
        assert!(found("", "/*\n// sm_90: griddepcontrol.wait;\n*/").is_some());
        for register in ["%clock64", "%globaltimer", "%smid", "%gridid", "%envreg3"] {
            assert!(found("", &format!("mov.u64 %rd1, {register};")).is_some(), "{register}");
        }
    }

    /// A folder with the first row that splits keys and the kernel that merges its splits, each with a body of its own.
    fn split(forward: &str, combine: &str) -> (tempfile::TempDir, Arc<Library>, Arc<Kernel>) {
        let (kernels, steps) = kernels_of_table();
        let kernel = kernels.iter().find(|kernel| kernel.row.schedule == Schedule::Split).expect("a row");
        let step = steps.iter().find(|step| step.row == StepRow::combine(kernel.row.dtype)).expect("a step");
        let home = tempfile::tempdir().expect("a folder");
        let mut folder = KernelFolder::new(home.path(), "by hand").expect("a folder");
        let bodies = [(&kernel.entry, forward), (&step.entry, combine)];
        let entry = |(entry, body): (&String, &str)| {
            format!(".visible .entry {entry}(\n\t.param .b8 {entry}_param_0[9]\n)\n{{\n{body}\nret;\n}}\n")
        };
        let entries: String = bodies.into_iter().map(entry).collect();
        let head = format!(".version 8.0\n.target {}\n.address_size 64\n", kernel.family);
        folder.family(&kernel.family, &(head + &entries)).expect("written");
        folder.kernel(Kernel::clone(kernel));
        folder.step_kernel(Kernel { family: kernel.family.clone(), ..Kernel::clone(step) });
        folder.finish().expect("written");
        let library = Arc::new(Library::open(home.path()).expect("a folder of kernels"));
        let kernel = find_in(&library, &kernel.entry).expect("there");
        (home, library, kernel)
    }

    #[test]
    fn the_kernel_that_merges_the_splits_may_not_tell_where_it_runs_either() {
        let said = |combine: &str| {
            let (_home, library, kernel) = split("", combine);
            LaunchCode::read(&library, &kernel).expect("readable").outlives_a_launch()
        };
        assert_eq!(said("st.global.f32 [%rd1], %f1;"), None);
        for register in ["%smid", "%clock64", "%globaltimer"] {
            let said = said(&format!("mov.u32 %r1, {register};")).expect("found");
            assert!(said.contains("combine_") && said.contains("merges its splits"), "{said}");
        }
    }

    #[test]
    fn sizes_that_the_kernel_which_merges_the_splits_has_in_its_code_are_asked_about() {
        let param = |at: usize| format!("ld.param.b32 z, [combine_f16_param_0+{at}];");
        let splits = std::mem::offset_of!(CombineParams, splits);
        for (condition, reaches) in [
            (
                format!("{} setp.eq.b32 w, z, 37;", param(splits)),
                &(|plan: &Plan| plan.splits() == 37) as &dyn Fn(&Plan) -> bool,
            ),
            ("mov.u32 z, %nctaid.x; setp.gt.u32 w, z, 5000;".to_owned(), &|plan: &Plan| {
                plan.combine_grid() > 5000
            }),
        ] {
            let (_home, library, kernel) = split("", &condition);
            let code = LaunchCode::read(&library, &kernel).expect("readable");
            let reach = Reach::new(&library, &kernel, &code).expect("readable");
            // No question is drawn for what it reaches: the literals alone are enough.
            let known = Code { literals: code.literals(), ..Code::unknown() };
            let asked = draw(&kernel.row, 0, &[], &known, 1);
            let is_asked = |question: &&Question| {
                reach.plan(question).is_some_and(|plan| plan.combine().is_some() && reaches(&plan))
            };
            let found = asked.iter().find(is_asked).unwrap_or_else(|| panic!("{condition}"));
            let other = asked.iter().find(|question| !is_asked(question)).expect("other questions");
            let [found, other] = [found, other].map(|question| reach.of(question));
            assert!(found.iter().any(|number| !other.contains(number)), "{condition}: {found:?} {other:?}");
        }
    }

    #[test]
    fn kernels_whose_splits_are_merged_otherwise_are_no_duplicates() {
        let hash = |combine: &str| {
            let (_home, library, kernel) = split("mov.u32 %r1, 1;", combine);
            ptx_hash(&library, &kernel, &Machine::simulator()).expect("readable")
        };
        assert_ne!(hash("mov.u32 %r1, 1;"), hash("mov.u32 %r1, 2;"));
        assert_eq!(hash("mov.u32 %r1, 1;"), hash("// another try\n  mov.u32 %r1, 1; // the same"));
    }
}
