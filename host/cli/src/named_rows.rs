//! Which kernels `verify --grid --rows` means.

use crate::failure::Failure;
use ferroflash::{Error, RowSelection};

/// Names joined by commas, in which `*` stands for any characters; all kernels where none are named.
pub(crate) struct NamedRows<'a>(Vec<&'a str>);

impl<'a> NamedRows<'a> {
    pub(crate) fn of(rows: Option<&'a RowSelection>) -> NamedRows<'a> {
        NamedRows(match rows {
            Some(RowSelection::Named(names)) => names.split(',').collect(),
            _ => Vec::new(),
        })
    }

    /// Whether a kernel is meant.
    pub(crate) fn mean(&self, entry: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|name| stands_for(name, entry))
    }

    /// # Errors
    /// [`Failure::Argument`] with the first name that stands for none of the `known` kernels.
    pub(crate) fn check<'k>(&self, known: impl Iterator<Item = &'k str> + Clone) -> Result<(), Failure> {
        match self.0.iter().find(|name| !known.clone().any(|entry| stands_for(name, entry))) {
            None => Ok(()),
            Some(unknown) => {
                Err(Failure::Argument { option: "--rows", source: Error::unknown_kernel(unknown, known) })
            }
        }
    }
}

fn stands_for(name: &str, entry: &str) -> bool {
    match name.split_once('*') {
        None => name == entry,
        Some((start, behind)) => entry.strip_prefix(start).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.get(at..).is_some_and(|rest| stands_for(behind, rest)))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = "fwd_wgmma_bf16_d128_m128n128_w12s2c1_split";

    fn named(names: &str) -> RowSelection {
        RowSelection::Named(names.to_owned())
    }

    #[test]
    fn a_star_stands_for_any_characters_and_a_comma_for_another_name() {
        for names in [ENTRY, "fwd_wgmma_bf16_d128*", "*", "fwd_*_d128*", "*_split", "fwd_f16_d64,*w12s2c1*"] {
            assert!(NamedRows::of(Some(&named(names))).mean(ENTRY), "{names}");
        }
        for names in ["fwd_wgmma_bf16_d128", "fwd_bf16*", "*_persistent", "fwd_*_d64*", "", "split,fwd"] {
            assert!(!NamedRows::of(Some(&named(names))).mean(ENTRY), "{names}");
        }
        for all in [None, Some(&RowSelection::All), Some(&RowSelection::Best)] {
            assert!(NamedRows::of(all).mean(ENTRY));
        }
    }

    #[test]
    fn each_name_must_stand_for_a_kernel() {
        let check =
            |names: &str| NamedRows::of(Some(&named(names))).check([ENTRY, "fwd_f16_d64"].into_iter());
        assert!(check("*_split,fwd_f16_d64").is_ok());
        let error = check("*_split,fwd_f16_d46").expect_err("one is unknown");
        assert!(error.to_string().contains("fwd_f16_d46"), "{error}");
    }
}
