//! `--shape B,HQ,HKV,SQ,SKV,D`.

use ferroflash::Sizes;
use std::num::ParseIntError;

/// Why a shape cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShapeError {
    #[error(
        "6 sizes are needed, B,HQ,HKV,SQ,SKV,D (batch, query heads, KV heads, queries, keys, head_dim), not {found}"
    )]
    Count { found: usize },
    #[error("{size:?} is not a size: {source}")]
    Size { size: String, source: ParseIntError },
}

/// Six sizes joined by commas.
pub(crate) fn parse(text: &str) -> Result<Sizes, ShapeError> {
    let sizes: Vec<u32> = text
        .split(',')
        .map(|size| size.trim().parse().map_err(|source| ShapeError::Size { size: size.to_owned(), source }))
        .collect::<Result<_, _>>()?;
    let &[batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim] = sizes.as_slice() else {
        return Err(ShapeError::Count { found: sizes.len() });
    };
    Ok(Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim })
}
