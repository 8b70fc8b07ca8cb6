//! What the kernels do not compute yet and the CPU does: the one table. A line goes when the library learns it.

use crate::error::Error;
use ferroflash_cpu::{Call, Dtype};

/// One thing that is refused.
struct Lacking {
    /// By flash-attn's name.
    what: &'static str,
    /// What else to do; empty or begins with a separator.
    advice: &'static str,
    is_asked: fn(&Call) -> bool,
}

const LACKING: &[Lacking] = &[
    Lacking {
        what: "float32",
        advice: ": convert to float16 or bfloat16",
        is_asked: |call| call.dtype == Dtype::F32,
    },
    Lacking {
        what: "float64",
        advice: ": convert to float16 or bfloat16",
        is_asked: |call| call.dtype == Dtype::F64,
    },
    Lacking {
        what: "alibi_slopes with softcap",
        advice: ": give one of them",
        is_asked: |call| call.alibi.is_some() && call.softcap > 0.0,
    },
    Lacking {
        what: "tree_mask with softcap or alibi_slopes",
        advice: ": give it alone",
        is_asked: |call| call.tree.is_some() && (call.alibi.is_some() || call.softcap > 0.0),
    },
    Lacking {
        what: "attn_bias with softcap, alibi_slopes or tree_mask",
        advice: ": add them up",
        is_asked: |call| {
            call.bias.is_some() && (call.alibi.is_some() || call.tree.is_some() || call.softcap > 0.0)
        },
    },
    Lacking {
        what: "dropout_p with softcap, alibi_slopes, tree_mask or attn_bias",
        advice: ": give it alone",
        is_asked: |call| {
            let has_score = call.softcap > 0.0 || call.alibi.is_some() || call.bias.is_some();
            call.dropout.is_some_and(|dropout| dropout.p > 0.0) && (has_score || call.tree.is_some())
        },
    },
    Lacking {
        what: "cache_leftpad",
        advice: ": give intervals of keys instead",
        is_asked: |call| call.lengths.first_k.is_some(),
    },
    Lacking {
        what: "cache_batch_idx with block_table",
        advice: ": index the table before the call",
        is_asked: |call| call.lengths.entry_k.is_some() && call.pages.is_some(),
    },
];

/// The names of all that is refused on a GPU.
pub fn names() -> impl Iterator<Item = &'static str> {
    LACKING.iter().map(|lacking| lacking.what)
}

/// Refuses what the kernels do not compute yet.
///
/// # Errors
/// [`Error::Unsupported`].
pub(crate) fn check(call: &Call, device: &'static str) -> Result<(), Error> {
    match LACKING.iter().find(|lacking| (lacking.is_asked)(call)) {
        Some(&Lacking { what, advice, .. }) => Err(Error::Unsupported { what, device, advice }),
        None => Ok(()),
    }
}
