//! The names nearest to one that no kernel has.

use super::Error;

impl Error {
    /// That no kernel of a list has a name.
    pub fn unknown_kernel<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Error {
        /// Names that are shown.
        const SHOWN: usize = 3;
        let alike = |name: &str| name.bytes().zip(wanted.bytes()).take_while(|(a, b)| a == b).count();
        let mut names: Vec<&str> = names.into_iter().collect();
        names.sort_by_key(|name| (std::cmp::Reverse(alike(name)), name.len().abs_diff(wanted.len())));
        let nearest = names.iter().take(SHOWN).map(|name| (*name).to_owned()).collect();
        Error::UnknownKernel { wanted: wanted.to_owned(), nearest, count: names.len() }
    }
}
