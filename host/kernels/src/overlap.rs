//! Whether a kernel may start under the kernel before it on its stream: it may where it waits for that one by itself.

use crate::ptx;
use std::collections::HashMap;

/// Whether a kernel of sm_90 waits for the kernels before it on its stream, on every path and before it touches memory that they can
/// reach (PTX ISA, "griddepcontrol"), so that its launch may let it start under them. `ptx` has one entry; comments that stand for
/// instructions count as these ([`ptx::for_sm`]).
///
/// What cannot be followed counts as touching memory: calls and indirect branches. PTX with comments between `/*` and `*/`, which no compiler
/// writes, is not read.
pub fn waits_first(ptx: &str) -> bool {
    if ptx.contains("/*") {
        return false;
    }
    let ptx = ptx::for_sm(ptx, 90);
    let Some((_, body)) = ptx.split_once(".entry").and_then(|(_, entry)| entry.split_once('{')) else {
        return false;
    };
    let (instructions, labels) = parse(body);
    let mut seen = vec![false; instructions.len()];
    let mut waits = false;
    // Where threads may be that have not waited.
    let mut ahead = vec![0];
    while let Some(at) = ahead.pop() {
        // Behind the last instruction a kernel ends.
        let Some(instruction) = instructions.get(at) else { return false };
        if std::mem::replace(&mut seen[at], true) {
            continue;
        }
        match instruction.effect() {
            Effect::Waits => waits = true,
            Effect::Fails => {}
            Effect::Touches => return false,
            Effect::None => ahead.push(at + 1),
            Effect::Branches => {
                let Some(&target) = labels.get(instruction.operands.trim()) else { return false };
                ahead.push(target);
                if instruction.is_predicated {
                    ahead.push(at + 1);
                }
            }
        }
    }
    waits
}

/// What an instruction is to a thread that has not waited.
enum Effect {
    None,
    Waits,
    /// Ends the whole stream.
    Fails,
    /// Touches memory that other kernels can reach, ends the kernel, or leads nobody knows where.
    Touches,
    Branches,
}

struct Instruction<'a> {
    is_predicated: bool,
    /// With all that follows behind dots.
    opcode: &'a str,
    operands: &'a str,
}

impl Instruction<'_> {
    fn effect(&self) -> Effect {
        let mut words = self.opcode.split('.');
        let family = words.next().unwrap_or_default();
        let own = |word: &str| {
            let space = word.split("::").next().unwrap_or_default();
            matches!(space, "shared" | "param" | "local" | "const")
        };
        match family {
            "griddepcontrol" if self.opcode == "griddepcontrol.wait" && !self.is_predicated => Effect::Waits,
            "ld" | "st" | "atom" | "red" if words.any(own) => Effect::None,
            "cp" if self.opcode.contains("_group") || self.opcode.contains("wait_all") => Effect::None,
            "ld" | "ldu" | "st" | "atom" | "red" | "cp" | "multimem" | "tensormap" | "tex" | "tld4"
            | "suld" | "sust" | "sured" | "wmma" | "call" | "brx" | "ret" | "exit" | "applypriority"
            | "discard" => Effect::Touches,
            "bra" => Effect::Branches,
            "trap" if !self.is_predicated => Effect::Fails,
            _ => Effect::None,
        }
    }
}

/// The instructions of a body, and the number of the one that each label stands before.
fn parse(body: &str) -> (Vec<Instruction<'_>>, HashMap<&str, usize>) {
    let (mut instructions, mut labels) = (Vec::new(), HashMap::new());
    // A predicate may stand on a line of its own.
    let mut is_predicated = false;
    for line in body.lines() {
        if line.contains('"') {
            // Text for the assembler that is all of a line is no instruction; what else stands beside text nobody reads.
            let is_pragma = line.trim().strip_prefix(".pragma \"").and_then(|rest| rest.strip_suffix("\";"));
            if is_pragma.is_none_or(|text| text.contains(['"', ';'])) {
                instructions.push(Instruction { is_predicated: false, opcode: "call", operands: "" });
            }
            continue;
        }
        let line = line.split("//").next().unwrap_or_default();
        for piece in line.split([';', '{', '}']) {
            let mut rest = piece.trim();
            while let Some((label, behind)) =
                rest.split_once(':').filter(|(label, behind)| is_label(label, behind))
            {
                labels.insert(label, instructions.len());
                rest = behind.trim_start();
            }
            if let Some(predicate) = rest.strip_prefix('@') {
                is_predicated = true;
                rest =
                    predicate.split_once(char::is_whitespace).map_or("", |(_, behind)| behind.trim_start());
            }
            let (opcode, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            if opcode.starts_with(|c: char| c.is_ascii_lowercase()) {
                let is_predicated = std::mem::take(&mut is_predicated);
                instructions.push(Instruction { is_predicated, opcode, operands });
            }
        }
    }
    (instructions, labels)
}

/// Whether `before`, the text up to a colon, is the name of a label. The `shared` of `shared::cta` is a state space, and a second colon follows.
fn is_label(before: &str, behind: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
    !before.is_empty() && before.chars().all(is_name) && !behind.starts_with(':')
}

#[cfg(test)]
mod tests {
    use super::waits_first;

    fn kernel(body: &str) -> bool {
        waits_first(&format!(
            ".version 7.4\n.target sm_80\n.visible .entry k(\n\t.param .u64 p\n)\n.maxntid 32\n{{\n{body}\n}}\n"
        ))
    }

    #[test]
    fn every_path_waits_before_it_touches_memory() {
        let wait = "// sm_90: griddepcontrol.wait;";
        assert!(kernel(&format!("ld.param.u64 %rd1, [p];\n{wait}\nld.global.u32 %r1, [%rd1];\nret;")));
        assert!(kernel("st.shared.u32 [%r1], 0; griddepcontrol.wait; st.global.u32 [%rd1], %r1; ret;"));
        // One of two paths waits early, the other later; a loop before.
        let two = |second: &str| {
            format!(
                "$L_0:\n@%p2 bra $L_0;\n@%p1 bra $L_1;\n{wait}\nld.global.u32 %r1, [%rd1];\n$L_1:\n{second}\nld.global.u32 %r1, [%rd2];\nret;"
            )
        };
        assert!(kernel(&two(wait)));
        assert!(!kernel(&two("")));
    }

    #[test]
    fn what_touches_memory_ends_or_leads_elsewhere_before_it_does_not_wait_first() {
        for early in [
            "ld.global.u32 %r1, [%rd1];",
            "ld.u32 %r1, [%rd1];",
            "@%p1 st.global.u32 [%rd1], %r1;",
            "atom.global.add.u32 %r1, [%rd1], 1;",
            "red.relaxed.gpu.global.add.u32 [%rd1], 1;",
            "cp.async.cg.shared.global [%r1], [%rd1], 16;",
            "{ .reg .b32 t; ld.volatile.global.u32 t, [%rd1]; }",
            "@%p1 ret;",
            "call.uni f, ();",
            "brx.idx %r1, $targets;",
            "bra $nowhere;",
        ] {
            assert!(!kernel(&format!("{early}\ngriddepcontrol.wait;\nret;")), "{early}");
        }
        for harmless in ["atom.shared::cta.add.u32 %r1, [%r2], 1;", "cp.async.wait_group 0;", "@%p1 trap;"] {
            assert!(kernel(&format!("{harmless}\ngriddepcontrol.wait;\nret;")), "{harmless}");
        }
        for early in [
            "@%p1\nbra $L;\nld.global.u32 %r1, [%rd1];\n$L:",
            "@%p1\n",
            ".pragma \"//\"; ld.global.u32 %r1, [%rd1];",
        ] {
            assert!(!kernel(&format!("{early}\ngriddepcontrol.wait;\nret;")), "{early}");
        }
        assert!(!kernel(".pragma \"x; griddepcontrol.wait; y\";\nld.global.u32 %r1, [%rd1];\nret;"));
        assert!(kernel(".pragma \"nounroll\";\ngriddepcontrol.wait;\nret;"));
        assert!(!kernel("/*\ngriddepcontrol.wait;\n*/\nld.global.u32 %r1, [%rd1];\nret;"));
        assert!(!kernel("trap;") && !kernel("ret;") && !kernel("@%p1 griddepcontrol.wait;\nret;"));
        assert!(!kernel("griddepcontrol.launch_dependents;\nret;") && !waits_first(""));
    }
}
