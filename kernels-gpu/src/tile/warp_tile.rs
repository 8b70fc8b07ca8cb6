//! The register arrays of a warp: its parts of Q, S, P and O, as types that follow from one list of sizes.

/// A value for each n8 tile or k16 step of each m16 tile, or for each of a lane's two rows of it: `[[T; N]; M]`.
pub trait Tiles<T: Copy>: Copy {
    /// m16 tiles.
    const M: usize;
    /// Values of each.
    const N: usize;

    /// The same value everywhere.
    fn splat(value: T) -> Self;

    /// The values that a function gives for m16 tile and number.
    fn from_fn(value: impl FnMut(usize, usize) -> T) -> Self;

    /// The values of m16 tile `m`.
    fn row(&self, m: usize) -> &[T];

    /// The values of m16 tile `m`, to change.
    fn row_mut(&mut self, m: usize) -> &mut [T];
}

impl<T: Copy, const M: usize, const N: usize> Tiles<T> for [[T; N]; M] {
    const M: usize = M;
    const N: usize = N;

    #[inline(always)]
    fn splat(value: T) -> Self {
        [[value; N]; M]
    }

    #[inline(always)]
    fn from_fn(mut value: impl FnMut(usize, usize) -> T) -> Self {
        core::array::from_fn(|m| core::array::from_fn(|n| value(m, n)))
    }

    #[inline(always)]
    fn row(&self, m: usize) -> &[T] {
        &self[m]
    }

    #[inline(always)]
    fn row_mut(&mut self, m: usize) -> &mut [T] {
        &mut self[m]
    }
}

/// The fragments of a warp. A lane holds two rows of each m16 tile, row g and row g + 8, and four elements of each n8 tile of it:
/// [`crate::tile::fragment`] says which.
pub trait WarpTile {
    /// Its part of Q, as A operands: a k16 step of head_dim each.
    type Q: Tiles<[u32; 4]>;
    /// Its part of S, and then P: an n8 tile of keys each.
    type S<T: Copy>: Tiles<T>;
    /// Its part of P, rounded, as A operands: a k16 step of keys each.
    type P: Tiles<[u32; 4]>;
    /// Its part of O: an n8 tile of head_dim each.
    type O: Tiles<[f32; 4]>;
    /// What P·V adds to its part of O.
    type Sums<T: Copy>: Tiles<T>;
    /// The A operands of one k16 step.
    type A: Tiles<[u32; 4]>;
    /// A value for each of a lane's rows.
    type Rows<T: Copy>: Tiles<T>;
    /// m16 tiles of query rows.
    const M: usize;
    /// row_max of rows that have seen no key.
    const NO_MAX: Self::Rows<f32>;
    /// row_sum of such rows.
    const NO_SUM: Self::Rows<f32>;
    /// O of such rows.
    const NO_O: Self::O;
    /// The first key of rows that see all from the first on.
    const NO_BEGIN: Self::Rows<u32>;
}

/// The fragments of `M` m16 tiles of rows, `N` n8 tiles (`N2` k16 steps) of keys, `V` n8 tiles of a value vector and `Q` k16 steps of a
/// query vector.
#[derive(Clone, Copy, Debug)]
pub enum Fragments<const M: usize, const N: usize, const N2: usize, const V: usize, const Q: usize> {}

impl<const M: usize, const N: usize, const N2: usize, const V: usize, const Q: usize> WarpTile
    for Fragments<M, N, N2, V, Q>
{
    type Q = [[[u32; 4]; Q]; M];
    type S<T: Copy> = [[T; N]; M];
    type P = [[[u32; 4]; N2]; M];
    type O = [[[f32; 4]; V]; M];
    type Sums<T: Copy> = [[T; V]; M];
    type A = [[[u32; 4]; 1]; M];
    type Rows<T: Copy> = [[T; 2]; M];
    const M: usize = {
        assert!(N == 2 * N2, "a k16 step is two n8 tiles");
        M
    };
    const NO_MAX: Self::Rows<f32> = [[f32::NEG_INFINITY; 2]; M];
    const NO_SUM: Self::Rows<f32> = [[0.0; 2]; M];
    const NO_O: Self::O = [[[0.0; 4]; V]; M];
    const NO_BEGIN: Self::Rows<u32> = [[0; 2]; M];
}
