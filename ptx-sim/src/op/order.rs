//! How an access orders memory, and among whom.

/// Threads among which an operation takes part in synchronisation (PTX ISA §8.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Cta,
    Cluster,
    Gpu,
    System,
}

impl Scope {
    pub(crate) fn of(name: &str) -> Option<Scope> {
        Some(match name {
            "cta" => Scope::Cta,
            "cluster" => Scope::Cluster,
            "gpu" | "gl" => Scope::Gpu,
            "sys" => Scope::System,
            _ => return None,
        })
    }
}

/// How an access orders memory (PTX ISA §8.4). Weak ones race; strong ones do not race with each other within their scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryOrder {
    /// `None` for a weak access.
    pub(crate) scope: Option<Scope>,
    pub(crate) acquires: bool,
    pub(crate) releases: bool,
}

impl MemoryOrder {
    pub(crate) const WEAK: MemoryOrder = MemoryOrder { scope: None, acquires: false, releases: false };

    /// By the words of a mnemonic.
    pub(crate) fn of(semantics: &str, scope: &str) -> MemoryOrder {
        let scope = match semantics {
            "" | "weak" => None,
            "volatile" | "mmio" => Some(Scope::System),
            _ => Some(Scope::of(scope).unwrap_or(Scope::Gpu)),
        };
        MemoryOrder {
            scope,
            acquires: matches!(semantics, "acquire" | "acq_rel"),
            releases: matches!(semantics, "release" | "acq_rel"),
        }
    }

    pub(crate) fn is_strong(self) -> bool {
        self.scope.is_some()
    }
}
