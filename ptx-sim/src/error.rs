//! Everything that can go wrong, by blame: the text, the call, or the kernel that ran.

use crate::finding::Finding;

/// PTX text that was refused. Nothing is guessed: what the table does not list is an error with its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A byte that PTX text cannot hold.
    #[error("line {line}: unexpected byte 0x{byte:02x}")]
    Character {
        /// Line of the byte.
        line: u32,
        /// The byte.
        byte: u8,
    },
    /// A comment, string or block without an end.
    #[error("line {line}: {what} is never closed")]
    Unterminated {
        /// Where it starts.
        line: u32,
        /// What is open.
        what: &'static str,
    },
    /// Something else stands where the grammar wants `expected`.
    #[error("line {line}: expected {expected}, found `{found}`")]
    Expected {
        /// Line of the token.
        line: u32,
        /// What the grammar wants.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// An instruction or directive that the table does not list.
    #[error("line {line}: `{instruction}` is not supported{}", feature(instruction))]
    Unsupported {
        /// Line of the instruction.
        line: u32,
        /// Its mnemonic.
        instruction: String,
    },
    /// An instruction that the module's `.target` does not have.
    #[error("line {line}: `{instruction}` needs .target {needs}, the module has `{target}`")]
    Target {
        /// Line of the instruction.
        line: u32,
        /// Its mnemonic.
        instruction: String,
        /// The least target; the one target if it ends in `a`; the first of those with a letter if it ends in `+`.
        needs: &'static str,
        /// The module's.
        target: String,
    },
    /// Modifiers that exclude or need each other.
    #[error("line {line}: `{instruction}`: {rule}")]
    Modifiers {
        /// Line of the instruction.
        line: u32,
        /// Its mnemonic.
        instruction: String,
        /// What is broken.
        rule: &'static str,
    },
    /// An operand of the wrong kind or width.
    #[error("line {line}: operand {position} of `{instruction}` must be {expected}")]
    Operand {
        /// Line of the instruction.
        line: u32,
        /// Its mnemonic.
        instruction: String,
        /// Position of the operand, from 1.
        position: usize,
        /// What it must be.
        expected: &'static str,
    },
    /// The wrong number of operands.
    #[error("line {line}: `{instruction}` takes {expected} operands, found {found}")]
    OperandCount {
        /// Line of the instruction.
        line: u32,
        /// Its mnemonic.
        instruction: String,
        /// Operands of this form.
        expected: usize,
        /// Operands given.
        found: usize,
    },
    /// A name that nothing declares.
    #[error("line {line}: `{name}` is not declared")]
    Undeclared {
        /// Line of the use.
        line: u32,
        /// The name.
        name: String,
    },
    /// A name that is declared twice in one scope.
    #[error("line {line}: `{name}` is declared twice")]
    Duplicate {
        /// Line of the second declaration.
        line: u32,
        /// The name.
        name: String,
    },
    /// A number beyond what can be handled.
    #[error("line {line}: {what} is {value}, the limit is {limit}")]
    Range {
        /// Line of the number.
        line: u32,
        /// What it counts.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The largest accepted value.
        limit: u64,
    },
    /// A use of a function that has no body in this module.
    #[error("line {line}: function `{name}` has no body in this module, {}", missing(name))]
    NoBody {
        /// Line of the call.
        line: u32,
        /// The function.
        name: String,
    },
    /// A use of a variable that this module only declares.
    #[error(
        "line {line}: variable `{name}` is `.extern`, and this module, which nobody has linked to another, does not define it"
    )]
    Undefined {
        /// Line of the use.
        line: u32,
        /// The variable.
        name: String,
    },
}

/// What the simulator lacks as a whole, where an instruction is of such a group.
fn feature(instruction: &str) -> &'static str {
    match instruction.split('.').next().unwrap_or_default() {
        "tex" | "tld4" | "txq" | "suld" | "sust" | "sured" | "suq" | "istypep" => {
            ": textures and surfaces are not simulated"
        }
        "tcgen05" => ": tensor memory (tcgen05) is not simulated",
        "multimem" => ": multicast memory of several devices is not simulated",
        _ if instruction.starts_with(LAUNCH) => ": kernels that launch kernels are not simulated",
        _ => "",
    }
}

/// What a kernel wants whose address another takes.
pub(crate) const LAUNCH: &str = "launch of ";

/// Why a function has no body.
fn missing(name: &str) -> &'static str {
    if name.contains("cudaCDP")
        || name.contains("cudaLaunchDevice")
        || name.contains("cudaGetParameterBuffer")
    {
        "as kernels that launch kernels are not simulated"
    } else {
        "which nobody has linked to another"
    }
}

impl LoadError {
    /// Line of the PTX text.
    pub fn line(&self) -> u32 {
        match self {
            LoadError::Character { line, .. }
            | LoadError::Unterminated { line, .. }
            | LoadError::Expected { line, .. }
            | LoadError::Unsupported { line, .. }
            | LoadError::Target { line, .. }
            | LoadError::Modifiers { line, .. }
            | LoadError::Operand { line, .. }
            | LoadError::OperandCount { line, .. }
            | LoadError::Undeclared { line, .. }
            | LoadError::Duplicate { line, .. }
            | LoadError::Range { line, .. }
            | LoadError::NoBody { line, .. }
            | LoadError::Undefined { line, .. } => *line,
        }
    }
}

/// A host access to simulated memory that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// No live allocation holds the whole range.
    #[error("no allocation holds {bytes} bytes at {address:#x}")]
    OutOfBounds {
        /// First address.
        address: u64,
        /// Length of the access.
        bytes: usize,
    },
    /// The address is not the start of a live allocation.
    #[error("{address:#x} is not the start of a live allocation")]
    NotAllocated {
        /// The address given.
        address: u64,
    },
}

/// A launch that could not start, or a kernel that did wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// No such entry in the module.
    #[error("the module has no entry `{name}`")]
    UnknownEntry {
        /// The name asked for.
        name: String,
    },
    /// The entry, or what it can reach, cannot be simulated.
    #[error("{0}")]
    Load(LoadError),
    /// The parameter block has the wrong length.
    #[error("entry `{entry}` takes {expected} bytes of parameters, got {got}")]
    ParamSize {
        /// The entry.
        entry: String,
        /// Bytes that its parameters take.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// A grid or block dimension is zero or above the device's limit.
    #[error("{what} is {got}, allowed are 1 to {limit}")]
    Geometry {
        /// Which dimension.
        what: &'static str,
        /// Its value.
        got: u64,
        /// The limit.
        limit: u64,
    },
    /// Another size than the kernel says that every launch has (`.reqntid`, `.reqnctapercluster`).
    #[error("{what} are {got:?}, the kernel says that they must be {required:?}")]
    Required {
        /// What is counted.
        what: &'static str,
        /// The launch's.
        got: [u32; 3],
        /// The kernel's.
        required: [u32; 3],
    },
    /// The CTA needs more shared memory than the device has.
    #[error("entry `{entry}` needs {requested} bytes of shared memory a CTA, the device has {limit}")]
    SharedMemory {
        /// The entry.
        entry: String,
        /// Static plus dynamic bytes.
        requested: u64,
        /// The device's limit.
        limit: u64,
    },
    /// A CTA to run lies outside the grid.
    #[error("CTA {cta} is outside a grid of {ctas}")]
    UnknownCta {
        /// The linear id asked for.
        cta: u32,
        /// CTAs of the grid.
        ctas: u64,
    },
    /// The kernel broke a rule that is checked.
    #[error("{0}")]
    Finding(Box<Finding>),
}

impl SimError {
    /// The finding, when the kernel is to blame.
    pub fn finding(&self) -> Option<&Finding> {
        match self {
            SimError::Finding(finding) => Some(finding),
            _ => None,
        }
    }
}
