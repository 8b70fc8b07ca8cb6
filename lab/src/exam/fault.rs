//! What a candidate does wrong, by name.

use ptx_sim::FindingKind;
use serde::{Deserialize, Serialize};

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident $text:literal $meaning:literal;)*) => {
        /// What a candidate does wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Fault {
            $(#[doc = $meaning] $name,)*
        }

        impl Fault {
            /// Every fault.
            pub const ALL: &'static [Fault] = &[$(Fault::$name),*];

            /// The name in records and tables.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Fault::$name => $text,)*
                }
            }

            /// What it means, in a few words.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Fault::$name => $meaning,)*
                }
            }
        }
    };
}

faults! {
    Zeros "zeros" "O is zero everywhere";
    Constant "constant" "O is one value everywhere";
    NotWritten "not-written" "O is not written everywhere";
    LastCall "last-call" "O is that of an earlier call";
    CachedByPointer "cached-by-pointer" "O is that of an earlier call at the same address";
    WrongScale "wrong-scale" "O is attention with another softmax scale";
    DroppedTail "dropped-tail" "O leaves out the last keys";
    HalfTheKeys "half-the-keys" "O sees half of the keys";
    OtherStream "other-stream" "O was written by work on another stream than the timed one";
    LateWrite "late-write" "O was written after the event that ends the timing";
    InputsChanged "inputs-changed" "Q, K or V was changed";
    OutOfBounds "out-of-bounds" "something beside O or LSE was written";
    NotRepeatable "not-repeatable" "the same inputs gave other bits the second time";
    RuleBroken "rule-broken" "a rule of the machine was broken";
    WrongNumbers "wrong-numbers" "O or LSE is further from float64 than a plain implementation may be";
    Hang "hang" "it did not end within its limit";
    Crash "crash" "it ended the process that ran it";
    TooFast "too-fast" "it is faster than the roofline allows: an error of the harness, or of what it timed";
    TimersDisagree "timers-disagree" "the device's events and the host's clock tell different times";
    Spills "spills" "registers spill to local memory";
    DoesNotFit "does-not-fit" "it needs more shared memory, registers or threads than there are";
    DoesNotApply "does-not-apply" "the patch may not be applied, or does not fit the tree";
    DoesNotCompile "does-not-compile" "it does not compile";
    Duplicate "duplicate" "its PTX is that of an earlier candidate";
}

impl Fault {
    /// What the simulator's refusal of a kernel means: what it gives up on, and what waits for what nobody will do, never ends.
    pub fn of_simulation(reason: &str) -> Fault {
        let never_ends = [FindingKind::Budget, FindingKind::Deadlock];
        if never_ends.iter().any(|kind| reason.starts_with(kind.name())) {
            Fault::Hang
        } else {
            Fault::RuleBroken
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_in_a_record_is_the_name_in_a_table() {
        for fault in Fault::ALL {
            let json = serde_json::to_string(fault).expect("serializable");
            assert_eq!(json, format!("\"{}\"", fault.name()));
        }
    }
}
