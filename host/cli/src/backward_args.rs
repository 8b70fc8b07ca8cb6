//! Options about the backward pass, which `plan`, `bench` and `verify` have.

use crate::failure::Failure;
use ferroflash::{Backward, Problem};
use std::num::NonZeroU32;

#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(crate) struct BackwardArgs {
    /// Bytes of dS that a backward pass may keep in its workspace, as in 512M: heads that do not fit together are computed one after the
    /// other, and with 0 none is kept, which is slower [default: 2304M]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, requires = "backward")]
    ds_max: Option<u64>,
    /// CTAs that share a block of keys and divide the queries that see it [default: as many as the problem asks for]
    #[arg(long, value_name = "N", requires = "backward")]
    query_splits: Option<NonZeroU32>,
    /// KV heads of a chunk and how many chunks dK and dV are ahead of dQ, where one launch computes all
    #[arg(long, value_name = "HEADS,CHUNKS", value_parser = parse_order, requires = "backward", hide = true)]
    ds_order: Option<[u32; 2]>,
}

impl BackwardArgs {
    /// A backward pass under these options.
    pub(crate) fn of(&self, backward: Backward) -> Backward {
        let backward = backward.with_ds_order(self.ds_order).with_query_splits(self.query_splits);
        self.ds_max.map_or(backward, |bytes| backward.with_ds_bytes_max(bytes))
    }

    /// The gradients of a problem under these options.
    pub(crate) fn gradients(&self, problem: &Problem) -> Result<Backward, Failure> {
        let refused = |source| Failure::Argument { option: "--backward", source };
        Ok(self.of(Backward::new(problem).map_err(refused)?))
    }
}

/// Two numbers.
fn parse_order(text: &str) -> Result<[u32; 2], String> {
    let numbers: Vec<u32> = text.split(',').filter_map(|number| number.parse().ok()).collect();
    numbers.try_into().map_err(|_| format!("{text} is not two numbers such as 1,5"))
}

/// A number of bytes, or of KiB, MiB or GiB with a K, M or G.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let unit = |(i, unit): (u32, char)| {
        let number = text.strip_suffix([unit, unit.to_ascii_lowercase()])?;
        Some((number, 1 << (10 * (i + 1))))
    };
    let (number, unit) = (0..).zip(['K', 'M', 'G']).find_map(unit).unwrap_or((text, 1_u64));
    let bytes = number.parse().ok().and_then(|number: u64| number.checked_mul(unit));
    bytes.ok_or_else(|| format!("{text} is no number of bytes such as 49152, 48K or 512M"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units_or_none() {
        let parsed = ["0", "7", "48K", "512m", "2G"].map(|text| parse_bytes(text).expect("bytes"));
        assert_eq!(parsed, [0, 7, 48 << 10, 512 << 20, 2 << 30]);
        for text in ["", "K", "-1", "1.5G", "1KK", "99999999999G"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
