//! Architectures by name, and what runs on them.

/// An architecture by the name that ptxas has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arch {
    /// Compute capability, 89 for 8.9.
    pub(super) sm: u32,
    /// Whether it has features of that one architecture only (`sm_90a`), so that its code runs nowhere else.
    pub(super) exact: bool,
}

impl Arch {
    pub(super) fn parse(name: &str) -> Option<Arch> {
        let digits = name.strip_prefix("sm_")?;
        let (digits, exact) = digits.strip_suffix('a').map_or((digits, false), |digits| (digits, true));
        Some(Arch { sm: digits.parse().ok()?, exact })
    }

    pub(super) fn runs_ptx_on(self, sm: u32) -> bool {
        if self.exact { sm == self.sm } else { sm >= self.sm }
    }

    /// Machine code runs on its own major version, from its minor version on.
    pub(super) fn runs_cubin_on(self, sm: u32) -> bool {
        self.runs_ptx_on(sm) && sm / 10 == self.sm / 10
    }
}

/// Whether PTX of a family runs on a device of compute capability `sm`.
pub(crate) fn runs_on(family: &str, sm: u32) -> bool {
    Arch::parse(family).is_some_and(|arch| arch.runs_ptx_on(sm))
}

/// The compute capability of an architecture by the name that ptxas has for it: 90 of `sm_90a`.
pub(crate) fn sm_of(arch: &str) -> Option<u32> {
    Arch::parse(arch).map(|arch| arch.sm)
}
