//! Questions at the numbers that a kernel's own code compares its parameters with: a kernel that is wrong at one size, above one, or at one scale
//! has that number in its code, and a random draw would hardly meet it.

mod statement;

use super::edges::Sides;
use super::{Placement, Question, log_uniform};
use fastrand::Rng;
use ferroflash::Row;
use kernels_gpu::geometry::{COMBINE_CTA_ROWS, SPLITS_MAX};
use kernels_gpu::row::Schedule;
use statement::Statement;
pub(super) use statement::{Literal, literal, names};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Numbers that values which follow from parameters alone are compared with, and values before additions, products and shifts by a number for
/// which the comparison comes out so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Literals {
    integers: BTreeSet<u32>,
    /// As bits.
    floats: BTreeSet<u32>,
    /// Numbers over those that other questions have of CTAs, which a CTA's own number, or that of all, is compared with.
    ctas: BTreeSet<u32>,
    /// The integers, and numbers of CTAs, that the kernel which merges splits has in its code.
    merging: [BTreeSet<u32>; 2],
    /// Integers that what a ragged batch has in memory, such as the lengths of its sequences, or a sequence's own number is compared with.
    of_batch: BTreeSet<u32>,
}

/// Most integers that are asked about, drawn where there are more.
const MOST: usize = 12;
/// Up to here other questions ask on either side of a bound; not so at every number itself.
const BOUNDS_ASKED: i64 = 256;
/// More CTAs than these, and up to these, are asked about where the code has such a number; of the largest so many.
const CTAS_ASKED: std::ops::Range<i64> = 1024..40_000;
const MOST_CTAS: usize = 2;
/// The largest size asked about.
const SIZE_MAX: i64 = 200_000;
/// The largest size that a ragged batch is to have, whose keys float64 and the simulator follow in seconds.
const RAGGED_SIZE_MAX: u32 = 20_000;
/// The most heads and batch entries that are asked about.
const HEADS_MAX: u32 = 4096;
/// Up to here as many queries as keys are asked about.
const BOTH_MAX: u32 = 4096;
/// Operations whose result follows from their operands alone.
const PURE: [&str; 30] = [
    "abs", "add", "and", "bfe", "bfi", "clz", "cvt", "cvta", "div", "fma", "ld.param", "lop3", "mad", "max",
    "min", "mov", "mul", "mul24", "neg", "not", "or", "popc", "prmt", "rem", "selp", "setp", "shf", "shl",
    "shr", "sub",
];

impl Literals {
    /// Those of a kernel's PTX.
    pub fn of_ptx(ptx: &str) -> Literals {
        let code = Code::read(ptx);
        let mut found = Literals::default();
        for Statement { op, to: _, from } in &code.statements {
            let mut words = op.split('.');
            match words.next() {
                Some("shr" | "and") => {
                    code.bits(op, from).for_each(|bit| found.add(Literal::Integer(bit), true));
                    // More CTAs than a mask leaves numbers for.
                    let is_of_cta = op.starts_with("and") && from.iter().any(|it| code.of_cta.contains(it));
                    let masks = from.iter().filter_map(|it| code.literal(it)).filter(|_| is_of_cta);
                    found.ctas.extend(masks.filter_map(|mask| match mask {
                        Literal::Integer(mask) => {
                            Some(mask).filter(|mask| CTAS_ASKED.contains(mask)).map(|mask| mask as u32)
                        }
                        Literal::Float(_) => None,
                    }));
                    continue;
                }
                Some("setp" | "set" | "min" | "max") => {}
                _ => continue,
            }
            let is_exact = words.any(|word| matches!(word, "eq" | "ne" | "equ" | "neu"));
            for (at, operand) in from.iter().enumerate() {
                let Some(literal) = code.literal(operand) else { continue };
                let others = || from.iter().enumerate().filter(|(other, _)| *other != at);
                for (_, register) in others().filter(|(_, it)| code.of_cta.contains(**it)) {
                    let mut values = vec![literal];
                    code.before(register, literal, &mut values);
                    let integers = values.iter().filter_map(|value| match value {
                        Literal::Integer(value) => Some(*value).filter(|value| CTAS_ASKED.contains(value)),
                        Literal::Float(_) => None,
                    });
                    found.ctas.extend(integers.map(|value| value as u32));
                }
                for (_, register) in others().filter(|(_, it)| code.pure.contains(**it)) {
                    found.add(literal, is_exact);
                    let mut values = Vec::new();
                    code.before(register, literal, &mut values);
                    // One comparison of a difference is two of the size, of which an interval may be within what is asked.
                    let is_interval = code
                        .origin(register)
                        .is_some_and(|origin| origin.op.starts_with("add.") || origin.op.starts_with("sub."));
                    values.into_iter().for_each(|value| found.add(value, is_exact || is_interval));
                }
                for (_, register) in others().filter(|(_, it)| code.of_batch.contains(**it)) {
                    let mut values = vec![literal];
                    code.before(register, literal, &mut values);
                    values.into_iter().for_each(|value| add_integer(&mut found.of_batch, value, is_exact));
                }
            }
        }
        found
    }

    /// Those of the PTX of a kernel that merges splits, which are asked about where there is something to merge.
    pub fn of_combine(ptx: &str) -> Literals {
        let Literals { integers, ctas, .. } = Literals::of_ptx(ptx);
        Literals { merging: [integers, ctas], ..Literals::default() }
    }

    /// Both.
    #[must_use]
    pub fn and(mut self, other: Literals) -> Literals {
        self.integers.extend(other.integers);
        self.floats.extend(other.floats);
        self.ctas.extend(other.ctas);
        self.merging.iter_mut().zip(other.merging).for_each(|(own, others)| own.extend(others));
        self.of_batch.extend(other.of_batch);
        self
    }

    /// One integer that sizes are compared with.
    pub(crate) fn of_size(size: u32) -> Literals {
        Literals { integers: BTreeSet::from([size]), ..Literals::default() }
    }

    /// One number that the scale times log2(e) is compared with.
    pub(crate) fn of_scale_log2(scale: f32) -> Literals {
        Literals { floats: BTreeSet::from([scale.to_bits()]), ..Literals::default() }
    }

    /// The integers, as sizes that may be asked about.
    pub(super) fn sizes(&self) -> impl Iterator<Item = u32> {
        self.integers.iter().copied().filter(|size| i64::from(*size) <= SIZE_MAX)
    }

    fn add(&mut self, value: Literal, is_exact: bool) {
        match value {
            Literal::Float(value) if value.is_finite() && value > 0.0 => {
                self.floats.insert(value.to_bits());
            }
            _ => add_integer(&mut self.integers, value, is_exact),
        }
    }

    /// Sizes that ragged batches are to have, any of them, drawn where there are more than are asked about; and numbers of CTAs of which there
    /// are to be more.
    pub(crate) fn of_ragged(&self, random: &mut Rng) -> (Vec<u32>, Vec<u32>) {
        let [merging, merging_ctas] = &self.merging;
        let all = self.integers.iter().chain(&self.of_batch).chain(merging).copied();
        let sizes: BTreeSet<u32> = all.filter(|size| *size <= RAGGED_SIZE_MAX).collect();
        let mut sizes: Vec<u32> = sizes.into_iter().collect();
        random.shuffle(&mut sizes);
        sizes.truncate(MOST);
        let ctas = [&self.ctas, merging_ctas].into_iter().flat_map(|ctas| ctas.iter().rev().take(MOST_CTAS));
        (sizes, ctas.copied().collect())
    }

    /// Scales at and beside the numbers that the scale is compared with, itself or times log2(e), as kernels have it.
    pub(crate) fn scales(&self) -> impl Iterator<Item = f32> {
        self.floats.iter().take(MOST).flat_map(|&bits| {
            let literal = f64::from(f32::from_bits(bits));
            let log2_e = std::f64::consts::LOG2_E;
            let scales = [literal / log2_e, literal, literal / log2_e * 1.01, literal / log2_e * 0.99];
            let scales = scales.map(|scale| nearest(scale, |scale| f64::from(scale) * log2_e, literal));
            scales.into_iter().filter(|scale| (1e-6..1e4).contains(scale))
        })
    }
}

fn add_integer(integers: &mut BTreeSet<u32>, value: Literal, is_exact: bool) {
    let Literal::Integer(value) = value else { return };
    if is_exact || value > BOUNDS_ASKED {
        // Behind a bound lies the next number.
        let values = if is_exact { value..=value } else { value..=value + 1 };
        let sizes = values.filter(|value| (3..SIZE_MAX << 9).contains(value));
        integers.extend(sizes.map(|size| size as u32));
    }
}

/// Two questions for each size that a literal may be: with and without a mask, with and without LSE.
pub(super) fn at(row: &Row, literals: &Literals, random: &mut Rng) -> Vec<Question> {
    let mut sizes = BTreeSet::new();
    for &literal in &literals.integers {
        // As a number of rows or heads, or as the elements or bytes of these.
        let width = row.head_dim;
        let divided = [1, width, 2 * width].into_iter().filter(|by| literal % by == 0).map(|by| literal / by);
        sizes.extend(divided.filter(|size| (3..=SIZE_MAX as u32).contains(size)));
    }
    let mut sizes: Vec<u32> = sizes.into_iter().collect();
    random.shuffle(&mut sizes);
    sizes.truncate(MOST);
    let mut asked = Vec::new();
    for &size in &sizes {
        let sides = Sides::draw(random);
        for sides in [sides, sides.other()] {
            let questions = of_size(row, size, sides, random);
            // A stride is such a multiple only where there are no gaps.
            let bare = |placement| if placement == Placement::Bhsd { placement } else { Placement::Bshd };
            asked.extend(questions.into_iter().map(|it| Question { placement: bare(it.placement), ..it }));
        }
    }
    for scale in literals.scales() {
        let question = Sides::draw(random).question(row, [1, 2, 1, 9, 150], 2, random);
        asked.push(Question { scale: Some(scale), ..question });
    }
    for ctas in literals.ctas.iter().rev().take(MOST_CTAS) {
        // One more than the number, and the CTA of that number.
        let heads = 128;
        // Of one block of keys, and of more.
        for keys in [log_uniform(random, 1, 8), random.u32(65..=130)] {
            let sizes = [(ctas + 2).div_ceil(heads), heads, heads, 1, keys];
            asked.push(Sides::draw(random).question(row, sizes, 1, random));
        }
    }
    asked.extend(at_merging(row, &literals.merging, random));
    asked.retain(|question| question.has_room(row));
    asked
}

/// Questions for numbers in the code of the kernel that merges splits, each of which it merges: as many splits, rows of one head and of several,
/// heads, batch entries; and more of its CTAs than a number of these.
fn at_merging(row: &Row, [sizes, ctas]: &[BTreeSet<u32>; 2], random: &mut Rng) -> Vec<Question> {
    let mut sizes: Vec<u32> = sizes.iter().copied().filter(|size| i64::from(*size) <= SIZE_MAX).collect();
    random.shuffle(&mut sizes);
    sizes.truncate(MOST);
    let merged = |sizes: [u32; 5], splits: Option<u32>, random: &mut Rng| {
        let question = Sides::draw(random).question(row, sizes, 2, random);
        Question { splits: splits.or(question.splits), ..question }.merged_by_a_kernel()
    };
    let mut asked = Vec::new();
    for size in sizes {
        let keys = 2 * row.block_n + log_uniform(random, 1, 64);
        let few = log_uniform(random, 1, 8);
        asked.push(merged([1, 1, 1, size, keys], None, random));
        if size <= HEADS_MAX {
            asked.push(merged([1, size, 1, few, keys], None, random));
            asked.push(merged([size, 1, 1, few, keys], None, random));
        }
        if size <= SPLITS_MAX {
            asked.push(merged([1, 1, 1, few, size * row.block_n - few], Some(size), random));
        }
    }
    for ctas in ctas.iter().rev().take(MOST_CTAS) {
        let rows = (ctas + 2) * COMBINE_CTA_ROWS;
        asked.push(merged([1, 1, 1, rows, 2 * row.block_n], None, random));
    }
    asked
}

/// Of the floats beside `value` the one that `of` makes `wanted`; the one nearest to `value` where none does.
fn nearest(value: f64, of: impl Fn(f32) -> f64, wanted: f64) -> f32 {
    let value = value as f32;
    let beside = [value, value.next_up(), value.next_down()];
    beside.into_iter().find(|value| of(*value) as f32 == wanted as f32).unwrap_or(value)
}

/// A question for each thing that there may be `size` of: keys, queries, heads that share one KV head, KV heads, batch entries, heads of two batch
/// entries, blocks of queries, blocks of keys, and splits.
fn of_size(row: &Row, size: u32, sides: Sides, random: &mut Rng) -> Vec<Question> {
    let few = |random: &mut Rng| log_uniform(random, 1, 8);
    let some = |random: &mut Rng| log_uniform(random, 9, 70);
    let mut all = vec![[1, 1, 1, few(random), size], [1, 1, 1, size, few(random)]];
    if size <= HEADS_MAX {
        let (queries, keys) = (few(random), some(random));
        all.extend([
            [1, size, 1, queries, keys],
            [1, size, size, queries, keys],
            [size, 1, 1, queries, keys],
        ]);
        if size.is_multiple_of(2) {
            all.push([2, size / 2, 1, queries, keys]);
        }
    }
    if (1100..=BOTH_MAX).contains(&size) {
        all.push([1, 1, 1, size, size]);
    }
    if size <= 128 {
        let within = |block: u32, random: &mut Rng| size * block - random.u32(0..block);
        all.push([1, 1, 1, within(row.block_m, random), few(random)]);
        all.push([1, 1, 1, few(random), within(row.block_n, random)]);
    }
    let mut asked: Vec<Question> =
        all.into_iter().map(|sizes| sides.question(row, sizes, 1, random)).collect();
    if row.schedule == Schedule::Split && size <= SPLITS_MAX {
        // More keys than whole blocks of as many would be fewer splits of more blocks each.
        let sizes = [1, 1, 1, few(random), size * row.block_n - few(random)];
        let question = Question { splits: Some(size), ..sides.question(row, sizes, 1, random) };
        asked.extend([question.clone(), question.merged_by_a_kernel()]);
    }
    asked
}

/// A kernel's PTX, as far as it tells what follows from parameters.
struct Code<'a> {
    statements: Vec<Statement<'a>>,
    /// Of each register the statements that write it.
    written: HashMap<&'a str, Vec<usize>>,
    /// Registers whose values follow from parameters alone: the same in all threads.
    pure: HashSet<&'a str>,
    /// Those that the number of the CTA, or how many there are, decides too.
    of_cta: HashSet<&'a str>,
    /// Those that integers in memory decide too, or another thread's: in a ragged batch these are lengths and starts of sequences, and pages.
    of_batch: HashSet<&'a str>,
}

/// What registers may follow from beside parameters and numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sources {
    Parameters,
    Cta,
    CtaAndMemory,
}

impl<'a> Code<'a> {
    fn read(ptx: &'a str) -> Code<'a> {
        let lines = ptx.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
        let statements: Vec<Statement<'a>> =
            lines.flat_map(|line| line.split(';')).filter_map(Statement::read).collect();
        let mut written: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, statement) in statements.iter().enumerate() {
            statement.to.iter().for_each(|to| written.entry(to).or_default().push(at));
        }
        let all: HashSet<&str> = written.keys().copied().collect();
        let mut code = Code {
            statements,
            written,
            pure: HashSet::new(),
            of_cta: HashSet::new(),
            of_batch: HashSet::new(),
        };
        code.pure = code.that_follow(all.clone(), Sources::Parameters);
        code.of_cta = code.that_follow(all.clone(), Sources::Cta);
        code.of_batch = code.that_follow(all, Sources::CtaAndMemory);
        let Code { pure, of_cta, of_batch, .. } = &mut code;
        [of_cta, of_batch].into_iter().for_each(|others| others.retain(|register| !pure.contains(register)));
        code
    }

    /// Of these registers those that parameters alone decide, and special registers: none that a thread's number, memory or a register which
    /// does not follow decides.
    fn that_follow(&self, mut registers: HashSet<&'a str>, sources: Sources) -> HashSet<&'a str> {
        let special: &[&str] = if sources == Sources::Parameters { &[] } else { &["%ctaid.x", "%nctaid.x"] };
        loop {
            let before = registers.len();
            for statement in &self.statements {
                let Statement { op, to, from } = statement;
                if sources == Sources::CtaAndMemory && statement.reads_integer() {
                    continue;
                }
                let is_pure = |operand: &&str| {
                    registers.contains(*operand) || literal(operand).is_some() || special.contains(operand)
                };
                let follows = PURE.iter().any(|pure| {
                    op.strip_prefix(pure).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
                });
                if !follows || !(op.starts_with("ld.param") || from.iter().all(is_pure)) {
                    to.iter().for_each(|to| {
                        registers.remove(to);
                    });
                }
            }
            if registers.len() == before {
                return registers;
            }
        }
    }

    /// The only statement that writes a register.
    fn origin(&self, register: &str) -> Option<&Statement<'a>> {
        match self.written.get(register)?.as_slice() {
            [one] => self.statements.get(*one),
            _ => None,
        }
    }

    /// A number, also where it lies in a register.
    fn literal(&self, operand: &str) -> Option<Literal> {
        literal(operand).or_else(|| match self.origin(operand)? {
            Statement { op, from, .. } if op.starts_with("mov.") => literal(from.first()?),
            _ => None,
        })
    }

    /// The numbers of a set, which compilers make of several comparisons: bits of a literal that is shifted by what follows from parameters, or of
    /// which only the bit of this number is looked at.
    fn bits(&self, op: &str, from: &[&str]) -> impl Iterator<Item = i64> {
        let is_set = match (op.starts_with("shr"), from) {
            (true, [_, by]) => self.pure.contains(by),
            (false, [one, _]) => self.origin(one).is_some_and(|origin| {
                let is_one = |operand: &&str| self.literal(operand) == Some(Literal::Integer(1));
                let by_register = origin.from.get(1).is_some_and(|by| self.literal(by).is_none());
                origin.op.starts_with("shl") && origin.from.first().is_some_and(is_one) && by_register
            }),
            _ => false,
        };
        let set = from.get(usize::from(op.starts_with("and"))).and_then(|set| self.literal(set));
        let set = match set {
            Some(Literal::Integer(set)) if is_set => set,
            _ => 0,
        };
        (0..64).filter(move |bit| set >> bit & 1 == 1)
    }

    /// Adds what the values that a register is made of are where it is `value`, back to what more than a number decides.
    fn before(&self, register: &str, value: Literal, into: &mut Vec<Literal>) {
        let Some(Statement { op, from, .. }) = self.origin(register) else { return };
        let (Some(&first), second) = (from.first(), from.get(1)) else { return };
        let second = second.map(|second| self.literal(second));
        let kind = op.split('.').next().unwrap_or(op);
        let earlier = match (kind, value, second) {
            ("mov" | "cvt", value, None) => value,
            ("add", Literal::Integer(value), Some(Some(Literal::Integer(by)))) => {
                // Where an interval begins, the difference is 0; its last number may be the one before.
                into.extend([-by, value - by - 1].map(Literal::Integer));
                Literal::Integer(value - by)
            }
            ("sub", Literal::Integer(value), Some(Some(Literal::Integer(by)))) => {
                into.extend([by, value + by - 1].map(Literal::Integer));
                Literal::Integer(value + by)
            }
            ("mul", Literal::Integer(value), Some(Some(Literal::Integer(by)))) if by != 0 => {
                Literal::Integer(value / by)
            }
            ("shl", Literal::Integer(value), Some(Some(Literal::Integer(by @ 0..=31)))) => {
                Literal::Integer(value >> by)
            }
            ("shr", Literal::Integer(value), Some(Some(Literal::Integer(by @ 0..=31)))) => {
                Literal::Integer(value.saturating_mul(1 << by))
            }
            ("xor", Literal::Integer(value), Some(Some(Literal::Integer(by)))) => {
                Literal::Integer(value ^ by)
            }
            ("and", value, Some(Some(_))) => value,
            ("mul", Literal::Float(value), Some(Some(Literal::Float(by)))) if by != 0.0 => {
                Literal::Float(value / by)
            }
            ("add", Literal::Float(value), Some(Some(Literal::Float(by)))) => Literal::Float(value - by),
            _ => return,
        };
        into.push(earlier);
        // A chain of registers with one origin each ends, as none can be its own.
        if into.len() < 64 {
            self.before(first, earlier, into);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::table::VARIANTS;

    fn found(body: &str) -> (Vec<u32>, Vec<f32>) {
        let before = "ld.param.b64 %rd1, [k_param_0+8];\nmov.b64 {%r1, %r2}, %rd1;\nld.param.f32 %f1, [k_param_0+16];\nmov.u32 %r9, %tid.x;";
        let Literals { integers, floats, .. } = Literals::of_ptx(&format!("{before}\n{body}"));
        (integers.into_iter().collect(), floats.into_iter().map(f32::from_bits).collect())
    }

    #[test]
    fn numbers_that_parameters_are_compared_with_are_found() {
        let integers = |body: &str| found(body).0;
        assert_eq!(integers("setp.eq.s32 %p1, %r1, 48;"), [48]);
        assert_eq!(integers("$L__BB0_1: @!%p2 setp.ne.b32 %p1, %r2, 0x30; // 5"), [48]);
        assert_eq!(integers("mov.b32 %r3, 777;\nsetp.eq.b32 %p1, %r1, %r3;"), [777]);
        assert_eq!(integers("setp.gt.u32 %p1, %r1, 777;"), [777, 778]);
        assert_eq!(integers("{ .reg .pred p; setp.eq.u32 p, %r2, 96; }"), [96]);
        assert_eq!(integers("add.s32 %r3, %r1, -500;\nsetp.lt.u32 %p1, %r3, 100;"), [500, 599, 600]);
        assert_eq!(integers("add.s32 %r3, %r1, -33;\nsetp.gt.u32 %p1, %r3, 4;"), [33, 36, 37]);
        let set = (1_u64 << 33) + (1 << 35);
        assert_eq!(integers(&format!("shr.u64 %rd3, {set}, %r1;")), [33, 35]);
        assert_eq!(integers(&format!("mov.b64 %rd4, {set};\nshr.u64 %rd3, %rd4, %r1;")), [33, 35]);
        assert_eq!(integers("shl.b32 %r3, 1, %r1;\nand.b32 %r4, %r3, 160;"), [5, 7]);
        assert_eq!(integers("shl.b32 %r3, %r1, 4;\nsetp.eq.s32 %p1, %r3, 768;"), [48, 768]);
        assert_eq!(integers("mul.lo.s32 %r3, %r1, %r2;\nsetp.eq.s32 %p1, %r3, 96;"), [96]);
        assert_eq!(integers("cvt.u64.u32 %rd3, %r1;\nsetp.eq.s64 %p1, %rd3, 48;"), [48]);
        let (_, floats) = found(
            "setp.eq.f32 %p1, %f1, 0f3FB8AA3B;\nmul.f32 %f2, %f1, 0f40000000;\nsetp.lt.f32 %p2, %f2, 0f41000000;",
        );
        assert_eq!(floats, [f32::from_bits(0x3fb8_aa3b), 4.0, 8.0]);
    }

    #[test]
    fn what_a_thread_or_memory_decides_is_none_of_them() {
        let none = (vec![], vec![]);
        assert_eq!(found("setp.eq.s32 %p1, %r9, 48;"), none);
        assert_eq!(found("add.s32 %r3, %r1, %r9;\nsetp.eq.s32 %p1, %r3, 48;"), none);
        assert_eq!(found("ld.global.b32 %r3, [%rd1];\nsetp.eq.s32 %p1, %r3, 48;"), none);
        assert_eq!(found("ld.global.v2.b32 {%r3, %r4}, [%rd1];\nsetp.eq.s32 %p1, %r4, 48;"), none);
        assert_eq!(found("setp.lt.s32 %p1, %r1, 65;\nsetp.eq.s32 %p2, %r1, 1;"), none);
        assert_eq!(found("st.global.b32 [%rd1], %r1;\n// setp.eq.s32 %p1, %r1, 48;"), none);
    }

    #[test]
    fn numbers_that_ctas_are_compared_with_are_asked_about_by_as_many_ctas() {
        for (body, most) in [
            ("mov.u32 %r3, %nctaid.x;\nsetp.gt.u32 %p1, %r3, 6000;", 6000),
            ("mov.u32 %r3, %ctaid.x;\nand.b32 %r3, %r3, 8191;", 8191),
            ("mov.u32 %r3, %ctaid.x;\nadd.s32 %r4, %r3, -4500;\nsetp.lt.u32 %p1, %r4, 3;", 4503),
        ] {
            let literals = Literals::of_ptx(body);
            let asked = at(&VARIANTS[0].row, &literals, &mut Rng::with_seed(1));
            let most_heads =
                asked.iter().map(|question| question.spec.shape.0).map(|shape| shape[0] * shape[1]).max();
            assert!(most_heads.is_some_and(|heads| heads > most), "{body}: {most_heads:?}");
            assert!(literals.integers.is_empty(), "{body}");
        }
        // Any number of these has more than one block of keys too.
        let literals = Literals::of_ptx("mov.u32 %r3, %nctaid.x;\nsetp.gt.u32 %p1, %r3, 1500;");
        let asked = at(&VARIANTS[0].row, &literals, &mut Rng::with_seed(1));
        let shapes = || asked.iter().map(|question| question.spec.shape.0);
        assert!(shapes().any(|[batch, heads, .., keys, _]| batch * heads > 1500 && keys > 64));
        assert_eq!(
            Literals::of_ptx("mov.u32 %r3, %ctaid.x;\nsetp.gt.u32 %p1, %r3, 60;"),
            Literals::default()
        );
    }

    #[test]
    fn each_thing_that_there_may_be_so_many_of_is_asked_about_from_two_sides() {
        let row = VARIANTS[0].row;
        let asked = at(&row, &Literals::of_size(48), &mut Rng::with_seed(1));
        let any = |what: &dyn Fn([u32; 6]) -> bool| {
            let questions: Vec<_> = asked.iter().filter(|question| what(question.spec.shape.0)).collect();
            assert!(questions.iter().any(|question| question.lse));
            assert!(questions.iter().any(|question| !question.lse));
        };
        any(&|[batch, ..]| batch == 48);
        any(&|[batch, heads, ..]| batch == 2 && batch * heads == 48);
        any(&|[_, heads, kv, ..]| heads == 48 && kv == 1);
        any(&|[_, _, kv, ..]| kv == 48);
        any(&|[_, _, _, queries, ..]| queries == 48);
        any(&|[_, _, _, _, keys, _]| keys == 48);
        any(&|[_, _, _, queries, ..]| queries.div_ceil(row.block_m) == 48);
        any(&|[_, _, _, _, keys, _]| keys.div_ceil(row.block_n) == 48);
        let of = |size: u32| {
            at(&row, &Literals::of_size(size), &mut Rng::with_seed(1)).into_iter().map(|it| it.spec.shape.0)
        };
        assert!(
            of(600).any(|[batch, ..]| batch == 600) && of(600).any(|[_, _, heads_kv, ..]| heads_kv == 600)
        );
        assert!(of(3001).any(|[.., queries, keys, _]| (queries, keys) == (3001, 3001)));
        assert!(of(100_001).any(|[.., keys, _]| keys == 100_001));
        let strides = Literals::of_size(777 * row.head_dim);
        let asked = at(&row, &strides, &mut Rng::with_seed(1));
        assert!(asked.iter().any(|question| question.spec.shape.0[4] == 777));
        let stride = i64::from(64 * row.head_dim);
        let asked = at(&row, &Literals::of_size(64 * row.head_dim), &mut Rng::with_seed(1));
        let is_so = |question: &&Question| {
            let problem = question.problem().expect("a problem");
            problem.sizes().heads_kv > 1 && problem.strides(ferroflash::TensorRole::K).row == stride
        };
        assert!(asked.iter().find(is_so).is_some());
        let one = Literals::of_scale_log2(std::f32::consts::LOG2_E);
        let asked = at(&row, &one, &mut Rng::with_seed(1));
        assert!(asked.iter().any(|question| question.scale == Some(1.0)));
    }
}
