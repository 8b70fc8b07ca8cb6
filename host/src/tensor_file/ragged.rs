//! Ragged batches in files: packed sequences, pages and operands beside Q, K and V.

use super::{Elements, Given, Inputs, Options, Tensor, common_dtype, inputs, with_options};
use crate::attention::OperandValues;
use crate::error::Error;
use crate::problem::{BiasShape, BlockTable, Layout, Operand, Pages, Problem, Score, Sizes};
use kernels_gpu::row::Dtype;

/// A ragged batch as a file has it.
pub(super) struct Batch {
    layout: Layout,
    seqlens_k: Option<Vec<u32>>,
    operands: Vec<(Operand, Tensor)>,
}

impl Batch {
    /// `None` where a file has nothing of the kind and Q, K and V are of one width.
    pub(super) fn new(
        [q, _, v]: &[Tensor; 3],
        given: Given,
        layout: Option<Layout>,
    ) -> Result<Option<Batch>, Error> {
        let Given { seqlens_k, operands } = given;
        let is_dense = operands.is_empty() && seqlens_k.is_none() && q.shape.last() == v.shape.last();
        if is_dense {
            return Ok(None);
        }
        let packs =
            |(operand, _): &(Operand, Tensor)| matches!(operand, Operand::CuSeqlensQ | Operand::BlockTable);
        let usual = if operands.iter().any(packs) { Layout::Bshd } else { Layout::Bhsd };
        let seqlens_k = seqlens_k.map(|lengths| lengths.natural_numbers()).transpose()?;
        Ok(Some(Batch { layout: layout.unwrap_or(usual), seqlens_k, operands }))
    }

    fn given(&self, wanted: Operand) -> Option<&Tensor> {
        self.operands.iter().find_map(|(operand, tensor)| (*operand == wanted).then_some(tensor))
    }

    fn starts(&self, wanted: Operand) -> Result<Option<Vec<u32>>, Error> {
        self.given(wanted).map(Tensor::natural_numbers).transpose()
    }

    /// The problem that these tensors pose.
    pub(super) fn inputs(
        self,
        qkv: [Tensor; 3],
        stored: [Option<Tensor>; 2],
        asked: &Options,
        said: &Options,
    ) -> Result<Inputs, Error> {
        let dtype = common_dtype(&qkv, asked.dtype)?;
        let mut problem = with_options(self.problem(&qkv, dtype)?, asked, said)?;
        if self.given(Operand::Intervals).is_some() {
            problem = problem.with_mask(problem.mask().with_intervals())?;
        }
        let Batch { layout, seqlens_k, operands, .. } = self;
        let values =
            |(operand, tensor): (Operand, Tensor)| Ok((operand, tensor.into_values(operand, dtype)?));
        let operands: Vec<(Operand, OperandValues)> =
            operands.into_iter().map(values).collect::<Result<_, Error>>()?;
        let inputs = Inputs { seqlens_k, operands, ..inputs(problem, layout, qkv, stored)? };
        if let Some(lengths) = &inputs.seqlens_k {
            problem.check_lengths(lengths)?;
        }
        inputs.tensors().check_operands(&problem)?;
        Ok(inputs)
    }

    fn problem(&self, [q, k, v]: &[Tensor; 3], dtype: Dtype) -> Result<Problem, Error> {
        let [starts_q, starts_k, page_indptr] =
            [Operand::CuSeqlensQ, Operand::CuSeqlensK, Operand::PageIndptr]
                .map(|operand| self.starts(operand));
        let (starts_q, starts_k, page_indptr) = (starts_q?, starts_k?, page_indptr?);
        let [batch_q, heads_q, rows_q, head_dim] = self.extent(q, starts_q.is_some())?;
        let [batch_k, heads_kv, rows_k, dim_k] = self.extent(k, starts_k.is_some())?;
        let v_extent = self.extent(v, starts_k.is_some())?;
        if dim_k != head_dim || v_extent[..3] != [batch_k, heads_kv, rows_k] {
            let (tensor, shape) = if dim_k == head_dim { ("V", &v.shape) } else { ("K", &k.shape) };
            let expected = format!("head_dim {head_dim} of K as Q has, and V as K but for its width");
            return Err(Error::ShapeMismatch { tensor, expected, got: shape.clone() });
        }
        let batch = starts_q.as_ref().map_or(batch_q, |starts| starts.len().saturating_sub(1) as u32);
        let longest = |starts: &[u32]| {
            let lengths = starts.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
            lengths.max().unwrap_or(0).max(1)
        };
        let last = |tensor: &Tensor| tensor.shape.last().map_or(0, |&n| n as u32);
        let pages = self.given(Operand::BlockTable).map(|block_table| {
            let entries = last(block_table);
            let table = match &page_indptr {
                Some(_) => BlockTable::Csr { entries },
                None => BlockTable::Rows { entries },
            };
            Pages { page: rows_k, pages: batch_k, table }
        });
        let most = match (&pages, &starts_k, &self.seqlens_k) {
            (Some(_), _, Some(lengths)) => lengths.iter().copied().max().unwrap_or(0).max(1),
            (Some(Pages { page, table, .. }), ..) => {
                let (BlockTable::Rows { entries } | BlockTable::Csr { entries }) = *table;
                page_indptr.as_deref().map_or(entries, longest).saturating_mul(*page)
            }
            (None, Some(starts), _) => longest(starts),
            (None, None, _) => rows_k,
        };
        // A bias has an element for each key that a sequence may have.
        let seqlen_k = most.max(self.given(Operand::Bias).map_or(0, last));
        let seqlen_q = starts_q.as_deref().map_or(rows_q, longest);
        let sizes = Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim };
        if pages.is_none() && starts_k.is_none() && batch_k != batch {
            let expected = format!("batch {batch} as Q has");
            return Err(Error::ShapeMismatch { tensor: "K", expected, got: k.shape.clone() });
        }
        let mut problem =
            Problem::new(sizes, dtype)?.with_head_dim_v(v_extent[3])?.with_lengths(self.seqlens_k.is_some());
        if starts_q.is_some() {
            problem = problem.with_packed_queries(rows_q)?;
        }
        if starts_k.is_some() {
            problem = problem.with_packed_keys(rows_k)?;
        }
        if let Some(pages) = pages {
            problem = problem.with_pages(pages)?;
        }
        problem = problem.with_layout(self.layout).with_sinks(self.given(Operand::Sinks).is_some());
        match (self.given(Operand::Slopes), self.given(Operand::Bias)) {
            (Some(slopes), _) => problem.with_score(Score::Alibi { per_batch: slopes.shape.len() == 2 }),
            (None, Some(bias)) => problem.with_score(Score::Bias(bias.bias_shape()?)),
            (None, None) => Ok(problem),
        }
    }

    /// `[batch, heads, rows, width]` of a tensor; packed sequences are one batch entry.
    fn extent(&self, tensor: &Tensor, is_packed: bool) -> Result<[u32; 4], Error> {
        let sizes: Vec<u32> = tensor.shape.iter().map(|&n| u32::try_from(n).unwrap_or(u32::MAX)).collect();
        match (&sizes[..], is_packed, self.layout) {
            (&[rows, heads, width], true, Layout::Bshd) => Ok([1, heads, rows, width]),
            (&[heads, rows, width], true, Layout::Bhsd) => Ok([1, heads, rows, width]),
            (&[batch, rows, heads, width], false, Layout::Bshd) => Ok([batch, heads, rows, width]),
            (&[batch, heads, rows, width], false, Layout::Bhsd) => Ok([batch, heads, rows, width]),
            _ => Err(Error::WrongRank {
                path: tensor.path.clone(),
                tensor: tensor.name.to_owned(),
                shape: tensor.shape.clone(),
                layout: match (is_packed, self.layout) {
                    (true, Layout::Bshd) => "[total, heads, head_dim] of packed sequences",
                    (true, Layout::Bhsd) => "[heads, total, head_dim] of packed sequences",
                    (false, layout) => layout.dimensions(),
                },
            }),
        }
    }
}

impl Tensor {
    /// Its elements, none of which may be negative.
    fn natural_numbers(&self) -> Result<Vec<u32>, Error> {
        let Elements::Integers(values) = &self.elements else {
            return Err(self.unsupported_dtype(self.elements.dtype_name()));
        };
        let number = |(index, &value): (usize, &i64)| {
            let reason = "it is negative, or over 32 bits";
            u32::try_from(value).map_err(|_| Error::OperandValue { operand: self.name, index, value, reason })
        };
        values.iter().enumerate().map(number).collect()
    }

    /// Its elements as an operand has them.
    fn into_values(self, operand: Operand, dtype: Dtype) -> Result<OperandValues, Error> {
        Ok(match operand {
            Operand::CuSeqlensQ | Operand::CuSeqlensK | Operand::PageIndptr | Operand::Intervals => {
                OperandValues::U32(self.natural_numbers()?)
            }
            Operand::BlockTable => {
                let Elements::Integers(values) = &self.elements else {
                    return Err(self.unsupported_dtype(self.elements.dtype_name()));
                };
                let number = |(index, &value): (usize, &i64)| {
                    let (operand, reason) = (self.name, "it is over 32 bits");
                    i32::try_from(value).map_err(|_| Error::OperandValue { operand, index, value, reason })
                };
                OperandValues::I32(values.iter().enumerate().map(number).collect::<Result<_, Error>>()?)
            }
            Operand::Sinks | Operand::Slopes => {
                OperandValues::F32(self.elements.into_f64().into_iter().map(|value| value as f32).collect())
            }
            Operand::Bias => OperandValues::Bits(self.into_bits(dtype)?),
            operand => {
                let reason = "it is not taken from a file";
                return Err(Error::Operand { operand: operand.name(), reason });
            }
        })
    }

    /// Which dimensions a bias `[batch, heads_q, seqlen_q, seqlen_k]` has: those whose size is not 1.
    fn bias_shape(&self) -> Result<BiasShape, Error> {
        match self.shape[..] {
            [batch, heads, queries, _] => {
                Ok(BiasShape { batch: batch != 1, heads: heads != 1, queries: queries != 1 })
            }
            _ => Err(Error::WrongRank {
                path: self.path.clone(),
                tensor: self.name.to_owned(),
                shape: self.shape.clone(),
                layout: "[batch or 1, heads or 1, queries or 1, keys]",
            }),
        }
    }
}
