//! The table of supported instruction forms. A row is a pattern of mnemonics, its operands, its meaning and its section of
//! PTX ISA 9.1; the decoder, the executor and the published support matrix are made from the rows.

pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod family;
pub(crate) mod float;
pub(crate) mod half;
mod hopper;
pub(crate) mod integer;
pub(crate) mod pattern;
pub(crate) mod rare;
mod video;

use crate::regs::Bank;

/// Bank and width of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) bank: Bank,
    pub(crate) bits: u8,
    /// Whether constants are converted to f32 or f64 rather than taken as integers.
    pub(crate) float: bool,
}

/// A lane-wise instruction: every lane computes its result from its own operands.
pub(crate) struct LaneRow<O: 'static> {
    pub(crate) op: O,
    pub(crate) pattern: &'static str,
    pub(crate) result: Shape,
    pub(crate) args: &'static [Shape],
    pub(crate) section: &'static str,
    pub(crate) meaning: &'static str,
}

/// Declares a table of lane-wise instructions: the enum, its rows and its executor.
///
/// A row reads `Name "pattern" (kinds of the operands -> kind of the result) "section" "meaning" closure;`.
macro_rules! lane_ops {
    ($(#[$meta:meta])* enum $name:ident {
        $($op:ident $pattern:literal ($($arg:ident)+ -> $result:ident) $section:literal $meaning:literal $f:expr;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $(#[doc = $meaning] $op,)* }

        impl $name {
            /// The rows of this table.
            pub(crate) const ROWS: &'static [$crate::table::LaneRow<$name>] = &[$(
                $crate::table::LaneRow {
                    op: $name::$op,
                    pattern: $pattern,
                    result: $crate::table::shape_of::<$crate::regs::$result>(),
                    args: &[$($crate::table::shape_of::<$crate::regs::$arg>()),+],
                    section: $section,
                    meaning: $meaning,
                },
            )*];

            /// Shapes of the result and of the operands.
            pub(crate) fn shapes(self) -> ($crate::table::Shape, &'static [$crate::table::Shape]) {
                let row = &Self::ROWS[self as usize];
                (row.result, row.args)
            }

            /// Runs the operation in the lanes of `mask`.
            pub(crate) fn execute(self, regs: &mut $crate::regs::Regs, mask: u32, s: &$crate::regs::Slots) {
                use $crate::regs::*;
                match self { $($name::$op => $crate::table::lane_map!(($($arg)+ -> $result) regs, mask, s, $f),)* }
            }
        }
    };
}

/// Picks the map function for the number of operands.
macro_rules! lane_map {
    (($a:ident -> $r:ident) $regs:expr, $mask:expr, $s:expr, $f:expr) => {
        map1::<$a, $r>($regs, $mask, $s, $f)
    };
    (($a:ident $b:ident -> $r:ident) $regs:expr, $mask:expr, $s:expr, $f:expr) => {
        map2::<$a, $b, $r>($regs, $mask, $s, $f)
    };
    (($a:ident $b:ident $c:ident -> $r:ident) $regs:expr, $mask:expr, $s:expr, $f:expr) => {
        map3::<$a, $b, $c, $r>($regs, $mask, $s, $f)
    };
    (($a:ident $b:ident $c:ident $e:ident -> $r:ident) $regs:expr, $mask:expr, $s:expr, $f:expr) => {
        map4::<$a, $b, $c, $e, $r>($regs, $mask, $s, $f)
    };
}

pub(crate) use {lane_map, lane_ops};

/// The shape of an operand of kind `K`.
pub(crate) const fn shape_of<K: crate::regs::Kind>() -> Shape {
    Shape { bank: K::BANK, bits: K::BITS, float: K::FLOAT }
}
