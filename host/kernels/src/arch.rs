//! Architectures by name, and what runs on them.

/// An architecture by the name that ptxas has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arch {
    /// Compute capability, 89 for 8.9.
    pub sm: u32,
    /// Whether it has features of that one architecture only (`sm_90a`), so that its code runs nowhere else.
    pub exact: bool,
}

impl Arch {
    /// An architecture by its name; `None` where that is none.
    pub fn parse(name: &str) -> Option<Arch> {
        let digits = name.strip_prefix("sm_")?;
        let (digits, exact) = digits.strip_suffix('a').map_or((digits, false), |digits| (digits, true));
        Some(Arch { sm: digits.parse().ok()?, exact })
    }

    /// Whether its PTX runs on a device of this compute capability.
    pub fn runs_ptx_on(self, sm: u32) -> bool {
        if self.exact { sm == self.sm } else { sm >= self.sm }
    }

    /// Machine code runs on its own major version, from its minor version on.
    pub fn runs_cubin_on(self, sm: u32) -> bool {
        self.runs_ptx_on(sm) && sm / 10 == self.sm / 10
    }
}
