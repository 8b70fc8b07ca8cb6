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
    Zeros "zeros" "O is zero";
    Constant "constant" "O is one value";
    NotWritten "not-written" "O or LSE is not written everywhere";
    LastCall "last-call" "O is that of an earlier call";
    CachedByPointer "cached-by-pointer" "O is that of an earlier call at the same address";
    State "state" "what a launch left behind changes a later one";
    WrongScale "wrong-scale" "O is attention with another softmax scale";
    WrongFactor "wrong-factor" "O is attention times a factor";
    DroppedTail "dropped-tail" "O leaves out the last keys";
    DroppedKeys "dropped-keys" "O leaves out keys that are not the last ones";
    HalfTheKeys "half-the-keys" "O sees half of the keys";
    SmallP "small-p" "O leaves out the keys whose P is small";
    WrongMask "wrong-mask" "O sees keys that the mask or the lengths hide";
    WrongHead "wrong-head" "O is attention with the keys of another KV head or batch entry";
    WrongLse "wrong-lse" "O is right and the LSE is not";
    RoundedLse "rounded-lse" "O is right and the LSE is rounded to fewer bits";
    WrongNan "wrong-nan" "NaN or infinity stands where a number should, or the reverse";
    Imprecise "imprecise" "O is attention with larger errors than a plain implementation makes";
    OtherStream "other-stream" "O was written by work on another stream than the timed one";
    LateWrite "late-write" "O was written after the event that ends the timing";
    InputsChanged "inputs-changed" "Q, K or V was changed";
    OutOfBounds "out-of-bounds" "something beside the outputs was written, or beside the inputs read";
    Race "race" "two accesses to the same memory are in no order";
    NotRepeatable "not-repeatable" "the same inputs gave other bits, by chance";
    RuleBroken "rule-broken" "a rule of the machine was broken";
    WrongNumbers "wrong-numbers" "O is further from float64 than a plain implementation may be, and like no known mistake";
    SpecialCased "special-cased" "it does less work on the inputs that are counted than on others";
    Hang "hang" "it did not end within its limit";
    Crash "crash" "it ended the process that ran it";
    TooFast "too-fast" "it is faster than the roofline allows: an error of the harness, or of what it timed";
    TimersDisagree "timers-disagree" "the device's events and the host's clock tell different times";
    Spills "spills" "registers spill to local memory";
    DoesNotFit "does-not-fit" "it needs more shared memory, registers or threads than there are";
    Forbidden "forbidden" "the patch adds or changes what no patch may";
    ChangesOthers "changes-others" "the patch leaves the examined kernel as it is and changes others, which nobody examines";
    DoesNotApply "does-not-apply" "the patch does not fit the tree";
    DoesNotCompile "does-not-compile" "it does not compile, or not within its limit";
    Duplicate "duplicate" "its PTX is that of an earlier candidate";
}

impl Fault {
    /// The fault behind an error of the host, where the candidate is to blame.
    pub fn of_error(error: &ferroflash::Error) -> Option<Fault> {
        use ferroflash::Error::{CounterNotZero, Cuda, GuardBand, PtxRejected, Simulation};
        match error {
            Simulation { reason, .. } => Some(Fault::of_simulation(reason)),
            // What lies between the bands, and no launch may write.
            GuardBand { side: "in", .. } => Some(Fault::InputsChanged),
            GuardBand { .. } => Some(Fault::OutOfBounds),
            CounterNotZero { .. } => Some(Fault::State),
            PtxRejected { .. } => Some(Fault::DoesNotCompile),
            // A fault of the kernel shows in whichever call comes next.
            Cuda { reason, .. } if is_kernel_fault(reason) => Some(Fault::RuleBroken),
            _ => None,
        }
    }

    /// What the simulator's refusal of a kernel means: what it gives up on, and what waits for what nobody will do, never ends.
    fn of_simulation(reason: &str) -> Fault {
        use FindingKind::{AsyncPending, Budget, Deadlock, GlobalRace, OutOfBounds, ProxyFence, SharedRace};
        let is = |kinds: &[FindingKind]| kinds.iter().any(|kind| reason.starts_with(kind.name()));
        if is(&[Budget, Deadlock]) {
            Fault::Hang
        } else if is(&[SharedRace, GlobalRace, AsyncPending, ProxyFence]) {
            Fault::Race
        } else if is(&[OutOfBounds]) {
            Fault::OutOfBounds
        } else {
            Fault::RuleBroken
        }
    }
}

/// The driver and its bindings spell the same errors in two ways.
fn is_kernel_fault(reason: &str) -> bool {
    const NAMES: [&str; 5] =
        ["illegaladdress", "misalignedaddress", "launchfailed", "illegalinstruction", "launchtimeout"];
    let spelled: String = reason.to_lowercase().chars().filter(|c| *c != '_').collect();
    NAMES.iter().any(|name| spelled.contains(name))
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

    #[test]
    fn what_the_simulator_gives_up_on_hangs_and_what_it_refuses_breaks_a_rule() {
        let of = |reason: &str| {
            Fault::of_error(&ferroflash::Error::Simulation { entry: "k".into(), reason: reason.into() })
        };
        assert_eq!(of("budget: kernel k line 34 `bra $L;`"), Some(Fault::Hang));
        assert_eq!(of("deadlock: kernel k line 34 `bra $L;`"), Some(Fault::Hang));
        assert_eq!(of("shared-race: kernel k line 34, out of budget"), Some(Fault::Race));
        assert_eq!(of("uninitialized: kernel k line 34"), Some(Fault::RuleBroken));
    }

    #[test]
    fn a_kernel_is_blamed_for_what_a_kernel_does() {
        let of = |reason: &str| {
            Fault::of_error(&ferroflash::Error::Cuda { call: "cuStreamSynchronize", reason: reason.into() })
        };
        assert_eq!(of("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal access"), Some(Fault::RuleBroken));
        assert_eq!(of("MisalignedAddress"), Some(Fault::RuleBroken));
        assert_eq!(of("CUDA_ERROR_OUT_OF_MEMORY"), None);
    }
}
