//! Which code of a kernel a question reaches, as far as the parameters of its launch decide: conditions on sizes, strides, addresses and the
//! number of a CTA, however they are computed.
//!
//! A kernel's code is followed once for all threads: what a thread's number or memory decides is not known, and both sides of a branch by it are
//! followed. A register has the one value that all statements write which are reached, or none that is known (conditional constant
//! propagation, without regard to the order of statements).

mod op;
mod reader;

use op::{Op, Type, Value, mask};
use reader::Reader;

/// A kernel's code.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    steps: Vec<Step>,
    registers: usize,
    /// The kernel's first statement.
    entry: usize,
}

/// One launch, as far as its code may depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Launched<'a> {
    /// The bytes of the kernel's one parameter.
    pub params: &'a [u8],
    /// CTAs.
    pub grid: u32,
    /// The number of the CTA that is followed.
    pub cta: u32,
}

/// One statement.
#[derive(Clone, Debug)]
struct Step {
    /// The predicate that it is executed by, and whether that is to be false.
    guard: Option<(usize, bool)>,
    does: Does,
    /// Whether a branch leads here.
    is_target: bool,
}

/// What a statement does.
#[derive(Clone, Debug)]
enum Does {
    /// Goes on at a statement.
    Branch(usize),
    /// Goes on at a function, and behind it.
    Call(usize),
    /// Goes on wherever a branch leads.
    BranchAnywhere,
    End,
    /// Reads the kernel's parameter from byte `at` on, `bytes` bytes into each register of `to`.
    Parameter {
        to: Vec<usize>,
        at: usize,
        bytes: usize,
    },
    /// Takes a value apart, the lowest bits first.
    Unpack {
        to: Vec<usize>,
        from: Source,
    },
    Compute {
        to: usize,
        op: Op,
        from: Vec<Source>,
    },
    /// Writes what is not known.
    Unknown(Vec<usize>),
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Register(usize),
    Value(u64),
    Grid,
    Cta,
    Unknown,
}

impl Paths {
    /// Those of a kernel's PTX. What is no statement that is known writes what is not known.
    pub fn of_ptx(ptx: &str) -> Paths {
        let mut reader = Reader::default();
        let mut head = None;
        for line in ptx.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code)) {
            if [".func", ".entry"].iter().any(|word| line.split_whitespace().any(|other| other == *word)) {
                head = Some(String::new());
            }
            match &mut head {
                // Up to its body, or of a function that is defined elsewhere.
                Some(text) => {
                    *text += line;
                    if line.trim_start().starts_with('{') {
                        reader.begin(text);
                        head = None;
                    } else if line.trim_end().ends_with(';') {
                        head = None;
                    }
                }
                None => line.split_inclusive([';', ':']).for_each(|piece| reader.read(piece)),
            }
        }
        reader.finish()
    }

    /// How many numbers [`Paths::reached`] may give: each is less.
    pub fn numbers(&self) -> u32 {
        4 * self.steps.len() as u32
    }

    /// What the parameters of a launch decide, as numbers: each statement that only a branch leads to and that is reached, and each predicate,
    /// remainder and masked value that is known with whether it is 0.
    pub fn reached(&self, launch: &Launched<'_>) -> Vec<u32> {
        let mut values = vec![Value::NotWritten; self.registers];
        let mut is_reached = vec![false; self.steps.len() + 1];
        is_reached[self.entry] = true;
        loop {
            let mut changes = false;
            for (at, step) in self.steps.iter().enumerate() {
                if !is_reached[at] {
                    continue;
                }
                let guard = match step.guard.map(|(register, negated)| (values[register], negated)) {
                    // What writes it is reached later, if at all.
                    Some((Value::NotWritten, _)) => continue,
                    Some((Value::Known(value), negated)) => Some(Some((value != 0) != negated)),
                    Some((Value::Unknown, _)) => Some(None),
                    None => None,
                };
                let mut reach = |to: usize| changes |= !std::mem::replace(&mut is_reached[to], true);
                match (&step.does, guard) {
                    (_, Some(Some(false))) => reach(at + 1),
                    (Does::End, None | Some(Some(true))) => {}
                    (Does::Call(to), _) => {
                        reach(*to);
                        reach(at + 1);
                    }
                    (Does::Branch(to), guard) => {
                        reach(*to);
                        if guard == Some(None) {
                            reach(at + 1);
                        }
                    }
                    (Does::BranchAnywhere, _) => {
                        (0..self.steps.len()).filter(|&to| self.steps[to].is_target).for_each(&mut reach);
                    }
                    (does, _) => {
                        reach(at + 1);
                        changes |= does.write(launch, &mut values);
                    }
                }
            }
            if !changes {
                break;
            }
        }
        let mut found = Vec::new();
        for (at, step) in self.steps.iter().enumerate().filter(|(at, _)| is_reached[*at]) {
            let number = 4 * at as u32;
            if step.is_target {
                found.push(number + 2);
            }
            if let Does::Compute { to, op, .. } = &step.does
                && op.decides()
                && let Value::Known(value) = values[*to]
            {
                found.push(number + u32::from(value != 0));
            }
        }
        found
    }
}

impl Does {
    fn copy(to: usize, from: Source) -> Does {
        let of = Type { kind: b'b', bits: 64 };
        Does::Compute {
            to,
            op: Op { name: "mov".to_owned(), words: Vec::new(), of, to: of },
            from: vec![from],
        }
    }

    /// Writes its registers; returns whether one is another than before.
    fn write(&self, launch: &Launched<'_>, values: &mut [Value]) -> bool {
        let of = |source: &Source, values: &[Value]| match source {
            Source::Register(register) => values[*register],
            Source::Value(value) => Value::Known(*value),
            Source::Grid => Value::Known(launch.grid.into()),
            Source::Cta => Value::Known(launch.cta.into()),
            Source::Unknown => Value::Unknown,
        };
        let mut changes = false;
        let mut put = |to: usize, value: Value, values: &mut [Value]| {
            let joined = match (values[to], value) {
                (Value::NotWritten, value) => value,
                (before, Value::NotWritten) => before,
                (before, value) if before == value => value,
                _ => Value::Unknown,
            };
            changes |= std::mem::replace(&mut values[to], joined) != joined;
        };
        match self {
            Does::Parameter { to, at, bytes } => {
                for (part, &to) in to.iter().enumerate() {
                    let from = at + part * bytes;
                    let read = launch.params.get(from..from + bytes);
                    let value = read
                        .map(|read| read.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)));
                    put(to, value.map_or(Value::Unknown, Value::Known), values);
                }
            }
            Does::Unpack { to, from } => {
                let bits = 64 / to.len() as u32;
                for (part, &to) in to.iter().enumerate() {
                    let value = match of(from, values) {
                        Value::Known(value) => Value::Known(value >> (bits * part as u32) & mask(bits)),
                        other => other,
                    };
                    put(to, value, values);
                }
            }
            // What is not known stays so, whatever comes.
            Does::Compute { to, .. } if values[*to] == Value::Unknown => {}
            Does::Compute { to, op, from } => {
                let from: Vec<Value> = from.iter().map(|source| of(source, values)).collect();
                put(*to, op.of_values(&from), values);
            }
            Does::Unknown(to) => to.iter().for_each(|&to| put(to, Value::Unknown, values)),
            Does::Branch(_) | Does::Call(_) | Does::BranchAnywhere | Does::End => {}
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel of two numbers, at 0 and 4, and an address at 8.
    fn kernel(body: &str) -> Paths {
        Paths::of_ptx(&kernel_text(body))
    }

    fn kernel_text(body: &str) -> String {
        format!(
            ".visible .entry fwd(\n\t.param .align 8 .b8 fwd_param_0[16]\n)\n.maxntid 128, 1, 1\n{{\n.reg .b32 %r<9>;\n\
             ld.param.v2.b32 {{%r1, %r2}}, [fwd_param_0];\nld.param.b64 %rd1, [fwd_param_0+8];\n{body}\nret;\n}}\n"
        )
    }

    fn reached(paths: &Paths, [one, two]: [u32; 2], address: u64) -> Vec<u32> {
        let params = [&one.to_le_bytes()[..], &two.to_le_bytes(), &address.to_le_bytes()].concat();
        paths.reached(&Launched { params: &params, grid: 40, cta: 39 })
    }

    /// Whether code that only these parameters reach is told from what others reach.
    fn tells(body: &str, special: ([u32; 2], u64), usual: ([u32; 2], u64)) -> bool {
        let paths = kernel(body);
        let [special, usual] = [special, usual].map(|(sizes, address)| reached(&paths, sizes, address));
        special.iter().any(|number| !usual.contains(number))
    }

    #[test]
    fn conditions_on_parameters_are_followed_however_they_are_computed() {
        let branch = |condition: &str| {
            format!("{condition}\n@!%p1 bra $L_2;\nst.global.b32 [%rd1], 1;\n$L_2:\nmov.b32 %r9, 0;")
        };
        for (condition, special, usual) in [
            // A hash of sizes.
            (
                "mul.lo.s32 %r3, %r1, 31;\nadd.s32 %r3, %r3, %r2;\nmul.lo.s32 %r4, %r1, 7;\nxor.b32 %r5, %r4, %r2;\n\
              rem.u32 %r6, %r5, 61;\nsetp.eq.b32 %p1, %r6, 3;",
                ([1, 4], 0),
                ([2, 4], 0),
            ),
            // Two sizes that are compared with each other.
            ("shl.b32 %r3, %r1, 1;\nsetp.eq.s32 %p1, %r2, %r3;", ([21, 42], 0), ([21, 43], 0)),
            // Three properties at once.
            (
                "setp.gt.u32 %p2, %r1, 7;\nand.b32 %r3, %r2, 1;\nsetp.ne.b32 %p3, %r3, 0;\nand.pred %p4, %p2, %p3;\n\
              setp.lt.u32.and %p1, %r2, 1000, %p4;",
                ([8, 3], 0),
                ([8, 2], 0),
            ),
            // Where a tensor begins.
            ("and.b64 %rd2, %rd1, 127;\nsetp.eq.s64 %p1, %rd2, 48;", ([1, 1], 0x1030), ([1, 1], 0x1010)),
            // The number of the CTA, and of all.
            (
                "mov.u32 %r3, %ctaid.x;\nadd.s32 %r4, %r3, %r1;\nsetp.eq.s32 %p1, %r4, 44;",
                ([5, 1], 0),
                ([6, 1], 0),
            ),
            ("mov.u32 %r3, %nctaid.x;\nsetp.lt.u32 %p1, %r3, %r1;", ([41, 1], 0), ([40, 1], 0)),
            // As signed numbers, and through a wider one.
            ("cvt.s64.s32 %rd2, %r1;\nsetp.lt.s64 %p1, %rd2, 0;", ([u32::MAX, 1], 0), ([1, 1], 0)),
            (
                "mul.wide.u32 %rd2, %r1, %r2;\nshr.u64 %rd3, %rd2, 33;\nsetp.ne.s64 %p1, %rd3, 0;",
                ([1 << 17, 1 << 17], 0),
                ([1 << 15, 1 << 15], 0),
            ),
            (
                "mov.b32 %r3, 0f3F800000;\nsetp.ge.f32 %p1, %r1, %r3;",
                ([1.5_f32.to_bits(), 1], 0),
                ([0.5_f32.to_bits(), 1], 0),
            ),
        ] {
            assert!(tells(&branch(condition), special, usual), "{condition}");
            assert!(!tells(&branch(condition), usual, usual), "{condition}");
        }
        // Without a branch.
        assert!(tells(
            "setp.eq.b32 %p1, %r1, 7;\nselp.f32 %f1, 0f3F800000, 0f3F8CCCCD, %p1;",
            ([7, 1], 0),
            ([8, 1], 0)
        ));
    }

    #[test]
    fn conditions_in_functions_are_followed_too() {
        let function = ".func (.param .b32 func_retval0) hash(\n\t.param .b32 hash_param_0,\n\t.param .b32 hash_param_1\n)\n{\n\
            ld.param.b32 %r1, [hash_param_0];\nld.param.b32 %r2, [hash_param_1];\nxor.b32 %r3, %r1, %r2;\nrem.u32 %r4, %r3, 61;\n\
            st.param.b32 [func_retval0], %r4;\nret;\n}\n";
        let call = "{ // callseq 0, 0\n.param .b32 param0;\n.param .b32 param1;\n.param .b32 retval0;\nst.param.b32 [param0], %r1;\n\
            st.param.b32 [param1], %r2;\ncall.uni (retval0), hash, (param0, param1);\nld.param.b32 %r5, [retval0];\n} // callseq 0\n\
            setp.eq.b32 %p1, %r5, 3;\n@!%p1 bra $L_2;\nst.global.b32 [%rd1], 1;\n$L_2:\nmov.b32 %r9, 0;";
        let declared =
            ".func (.param .b32 func_retval0) hash(.param .b32 hash_param_0, .param .b32 hash_param_1);\n";
        let text = kernel_text(call);
        for text in [format!("{declared}{text}{function}"), format!("{function}{text}")] {
            let paths = Paths::of_ptx(&text);
            let [special, usual] = [[65, 66], [65, 67]].map(|sizes| reached(&paths, sizes, 0));
            assert!(special.iter().any(|number| !usual.contains(number)), "{special:?} {usual:?}");
        }
    }

    #[test]
    fn what_threads_and_memory_decide_takes_both_ways_and_is_no_finding() {
        for unknown in
            ["mov.u32 %r3, %tid.x;", "ld.global.b32 %r3, [%rd1];", "add.s32 %r3, %r3, %r1;\nmov.b32 %r3, 5;"]
        {
            let paths = kernel(&format!(
                "{unknown}\nsetp.eq.s32 %p1, %r3, %r1;\n@%p1 bra $L_2;\nmov.b32 %r4, 1;\n$L_1:\nmov.b32 %r5, 1;\nbra.uni $L_3;\n\
                 $L_2:\nmov.b32 %r4, 1;\nsetp.eq.b32 %p2, %r4, 1;\n@%p2 bra $L_1;\n$L_3:"
            ));
            let [one, other] = [5, 6].map(|size| reached(&paths, [size, 1], 0));
            assert_eq!(one, other, "{unknown}");
            // Each label, and the predicate that is known on the one way: both write it alike.
            assert_eq!(one.len(), 4, "{unknown}: {one:?}");
        }
    }
}
