//! The statements of a PTX module, with names not yet resolved.

/// A state space that a variable can be declared in (PTX ISA §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// One element of an initialiser.
#[derive(Clone, Debug)]
pub(crate) enum InitValue<'a> {
    /// The bit pattern, to be cut to the element's width.
    Bits(u64),
    /// A floating-point number, rounded to the element's type.
    Float(f64),
    /// The address of a symbol plus a byte offset, or the bits of it that a mask leaves.
    Symbol { name: &'a str, offset: i64, mask: Option<u64> },
}

/// A variable outside the register space.
#[derive(Clone, Debug)]
pub(crate) struct Variable<'a> {
    pub(crate) space: Space,
    pub(crate) name: &'a str,
    pub(crate) align: u32,
    /// Bytes of one element.
    pub(crate) element: u32,
    /// Elements of a vector type.
    pub(crate) lanes: u32,
    /// Total bytes; 0 for an `.extern` array without a length.
    pub(crate) bytes: u64,
    pub(crate) is_extern: bool,
    pub(crate) init: Vec<InitValue<'a>>,
    /// Of a function's parameter that is a register.
    pub(crate) register: Option<RegWidth>,
    pub(crate) line: u32,
}

/// The width of a declared register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegWidth {
    Pred,
    Bits(u8),
}

/// An operand as written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand<'a> {
    /// A register, special register, symbol or label.
    Name(&'a str),
    /// A symbol plus a constant.
    NameOffset(&'a str, i64),
    /// `-%r`, of `vmad`.
    Negative(&'a str),
    /// `!%p`.
    Not(&'a str),
    /// `%p|%q`.
    Pair(&'a str, &'a str),
    /// An integer, two's complement.
    Int(i64),
    /// A floating-point constant; `single` for the `0f` form.
    Float { value: f64, single: Option<u32> },
    /// `{a, b, …}`.
    Vector(Vec<Operand<'a>>),
    /// `[base+offset]`.
    Address { base: Option<&'a str>, offset: i64 },
    /// `[base+offset, {a, b, …}]` of a tensor copy.
    TensorAddress { address: Box<Operand<'a>>, coordinates: Vec<Operand<'a>> },
    /// `(a, b, …)` of a call.
    List(Vec<Operand<'a>>),
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction<'a> {
    /// The guard predicate and whether it is negated.
    pub(crate) guard: Option<(&'a str, bool)>,
    pub(crate) mnemonic: &'a str,
    pub(crate) operands: Vec<Operand<'a>>,
}

/// One statement of a function body.
#[derive(Clone, Debug)]
pub(crate) enum Statement<'a> {
    /// `.reg`: a name, the count of the `<n>` form, and the elements of a vector.
    Register {
        name: &'a str,
        count: Option<u32>,
        width: RegWidth,
        lanes: u32,
    },
    Variable(Variable<'a>),
    Label(&'a str),
    Open,
    Close,
    /// `label: .branchtargets a, b;`
    Targets {
        name: &'a str,
        labels: Vec<&'a str>,
    },
    /// `label: .calltargets f, g;` or `.callprototype …`: names only, calls carry what is needed.
    Prototype,
    Instruction(Instruction<'a>),
    /// `.loc`: file, line and column, and those of the call where that was inlined.
    Location {
        here: (u32, u32, u32),
        inlined_at: Option<(u32, u32, u32)>,
    },
}

/// A function or entry.
#[derive(Clone, Debug)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) is_entry: bool,
    pub(crate) returns: Vec<Variable<'a>>,
    pub(crate) params: Vec<Variable<'a>>,
    /// Statements with their lines; `None` for a declaration.
    pub(crate) body: Option<Vec<(u32, Statement<'a>)>>,
    pub(crate) bounds: Bounds,
    pub(crate) line: u32,
}

/// What a kernel says of its launches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    /// The product of `.maxntid`.
    pub(crate) max_threads: Option<u64>,
    /// `.reqntid`.
    pub(crate) block: Option<[u32; 3]>,
    /// `.reqnctapercluster`.
    pub(crate) cluster: Option<[u32; 3]>,
}

/// A parsed module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Module<'a> {
    pub(crate) variables: Vec<Variable<'a>>,
    pub(crate) functions: Vec<Function<'a>>,
    /// `.alias`: another name for a function.
    pub(crate) aliases: Vec<(&'a str, &'a str)>,
    /// `.file` numbers and names.
    pub(crate) files: Vec<(u32, &'a str)>,
    /// The architecture of `.target`.
    pub(crate) target: &'a str,
    /// `.target …, debug`: compiled without optimisation.
    pub(crate) is_debug: bool,
}
