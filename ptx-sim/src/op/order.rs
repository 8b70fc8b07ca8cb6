//! How an access orders memory, and among whom.

use std::num::NonZeroU8;

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

/// The proxies that a fence brings generic writes to (PTX ISA §8.6): the async proxy of shared and of global memory, which have
/// fences of their own, and that of tensor maps, to which the writer releases what the reader then acquires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    AsyncShared,
    AsyncGlobal,
    TensorMapReleased,
    TensorMap,
}

impl Proxy {
    pub(crate) const COUNT: usize = 4;
}

/// How an access orders memory (PTX ISA §8.4). Weak ones race; strong ones do not race with each other within their scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryOrder {
    /// `None` for a weak access.
    pub(crate) scope: Option<Scope>,
    pub(crate) acquires: bool,
    pub(crate) releases: bool,
    /// Bytes of an element: vectors and packed types are as many accesses (PTX ISA §8.2.1–2).
    pub(crate) element_bytes: u8,
    /// Whether it promises that nobody writes there while the kernel runs (`ld.nc`, `ldu`).
    pub(crate) read_only: bool,
}

impl MemoryOrder {
    pub(crate) const WEAK: MemoryOrder =
        MemoryOrder { scope: None, acquires: false, releases: false, element_bytes: 1, read_only: false };

    /// By the words of a mnemonic.
    pub(crate) fn of(semantics: &str, scope: &str, element_bytes: u8) -> MemoryOrder {
        let scope = match semantics {
            "" | "weak" => None,
            "volatile" | "mmio" => Some(Scope::System),
            _ => Some(Scope::of(scope).unwrap_or(Scope::Gpu)),
        };
        MemoryOrder {
            scope,
            acquires: matches!(semantics, "acquire" | "acq_rel"),
            releases: matches!(semantics, "release" | "acq_rel"),
            element_bytes,
            read_only: false,
        }
    }

    pub(crate) fn is_strong(self) -> bool {
        self.scope.is_some()
    }

    /// What of it others are compared with; `None` for a weak access. `modifies` is of a read-modify-write.
    pub(crate) fn strength(self, modifies: bool) -> Option<Strength> {
        self.scope.map(|scope| Strength::new(scope, self.element_bytes.into(), modifies, false))
    }
}

/// What of a strong access decides whether another is morally strong relative to it (PTX ISA §8.5): its scope, its size, its proxy.
/// One byte, as every past access that is remembered has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strength(NonZeroU8);

impl Strength {
    /// The scope's bits, the logarithm of the element's bytes, and two flags.
    const SCOPE: u8 = 3;
    const SIZE: u8 = 7 << 2;
    const MODIFIES: u8 = 1 << 5;
    const ASYNC_PROXY: u8 = 1 << 6;
    const IS_STRONG: NonZeroU8 = match NonZeroU8::new(1 << 7) {
        Some(bit) => bit,
        None => panic!("it is 128"),
    };

    pub(crate) fn new(scope: Scope, element_bytes: u32, modifies: bool, by_async_proxy: bool) -> Self {
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        let size = (element_bytes.trailing_zeros() as u8) << 2;
        let flags = flag(modifies, Self::MODIFIES) | flag(by_async_proxy, Self::ASYNC_PROXY);
        Strength(Self::IS_STRONG | (scope as u8 | size | flags))
    }

    fn scope(self) -> u8 {
        self.0.get() & Self::SCOPE
    }

    fn element_bytes(self) -> u32 {
        1 << ((self.0.get() & Self::SIZE) >> 2)
    }

    /// Whether two accesses that overlap overlap completely, by one proxy: both are aligned to their size. A byte or half
    /// may lie in a word of which one of the two is modified: libcu++ makes its small atomics so.
    #[inline]
    pub(crate) fn is_like(self, other: Strength) -> bool {
        let unlike = self.0.get() ^ other.0.get();
        if unlike & (Self::SIZE | Self::ASYNC_PROXY) == 0 {
            return true;
        }
        let in_word = is_within_word(self.element_bytes(), other.element_bytes());
        unlike & Self::ASYNC_PROXY == 0 && unlike & Self::MODIFIES != 0 && in_word
    }

    /// Whether a later access of the same agent may be remembered in the place of an earlier one: both weak, or of one size and proxy.
    #[inline]
    pub(crate) fn are_one(a: Option<Strength>, b: Option<Strength>) -> bool {
        match (a, b) {
            (None, None) => true,
            (Some(a), Some(b)) => (a.0.get() ^ b.0.get()) & (Self::SIZE | Self::ASYNC_PROXY) == 0,
            _ => false,
        }
    }

    /// Whether both scopes reach that far.
    #[inline]
    pub(crate) fn reach(self, other: Strength, least: Scope) -> bool {
        self.scope() >= least as u8 && other.scope() >= least as u8
    }
}

/// Whether accesses of so many bytes are of a word, or of parts of one.
pub(crate) fn is_within_word(a: u32, b: u32) -> bool {
    a.max(b) == 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_of_one_size_and_proxy_are_alike() {
        let of = |bytes, modifies| Strength::new(Scope::Gpu, bytes, modifies, false);
        assert!(of(4, true).is_like(of(4, false)) && !of(4, true).is_like(of(8, true)));
        assert!(of(1, false).is_like(of(4, true)) && of(4, true).is_like(of(2, false)));
        assert!(!of(1, true).is_like(of(4, true)) && !of(1, false).is_like(of(8, true)));
        assert!(!of(4, true).is_like(Strength::new(Scope::Gpu, 4, true, true)));
        assert!(
            of(16, false).reach(of(1, true), Scope::Gpu) && !of(4, true).reach(of(4, true), Scope::System)
        );
        assert_eq!(size_of::<Option<Strength>>(), 1);
    }
}
