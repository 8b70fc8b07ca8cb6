//! The name of a wrong output, from evidence: which elements are wrong, and which one mistake gives just those numbers.

use super::explanations::{Explained, ROWS, Suspect};
use super::{CLEAR, Fault, POISON};
use check::reference::{Reference, keys, row_coordinates, row_start, visible_keys};
use check::verification::Oracle;
use ferroflash::attention::Output;
use ferroflash::rounding::widen;
use ferroflash::{Problem, TensorRole};
use kernels_gpu::row::Accumulation;

/// A fault with what shows it.
pub(super) struct Named {
    pub(super) fault: Fault,
    pub(super) how: String,
    /// Keys times rows that tell it from other faults.
    pub(super) weight: usize,
}

/// Names the fault of an output that is known to be wrong, and says what shows it.
pub(super) fn diagnose(oracle: &Oracle, accumulation: Accumulation, output: &Output) -> Named {
    let Oracle { problem, reference: right, .. } = oracle;
    let tolerance = oracle.tolerance(accumulation);
    let [wrong_o, wrong_lse] = tolerance.wrong_rows(problem, right, output);
    let place = |fault: Fault, rows: &[usize], more: &str| {
        let more = if more.is_empty() { String::new() } else { format!(", {more}") };
        let how = format!("{}{more}: wrong are {}", fault.meaning(), region(problem, rows));
        Named { fault, how, weight: CLEAR }
    };
    if wrong_o.is_empty() {
        let lse = output.lse.as_deref().unwrap_or_default();
        let (fault, more) = super::lse::diagnose(oracle, lse, &wrong_lse);
        // One number a row: of few rows a scale explains whatever an offset does.
        let weight = (problem.sizes().seqlen_k as usize).min(CLEAR / ROWS + 1) * wrong_lse.len().min(ROWS);
        return Named { weight, ..place(fault, &wrong_lse, &more) };
    }
    let in_place = in_place_of_o(problem, output, &wrong_o);
    // Where the right O is one value as well, a factor makes another of it, and only other questions can tell.
    let is_alike = in_place == Some(Fault::Constant) && is_one_value(problem, right, &wrong_o);
    let head_dim = problem.sizes().head_dim as usize;
    let expected = |row: usize| {
        let start = row_start(problem, TensorRole::O, row_coordinates(problem, row));
        &right.o[start..start + head_dim]
    };
    // 0 where each row should be NaN is NaN that was swallowed, whatever stands there.
    let is_swallowed = || {
        let is_odd = |&row: &usize| expected(row).iter().all(|o| !o.is_finite());
        in_place != Some(Fault::NotWritten) && wrong_o.iter().all(is_odd)
    };
    match in_place.filter(|_| !is_alike) {
        Some(_) if is_swallowed() => return place(Fault::WrongNan, &wrong_o, ""),
        Some(fault) => return place(fault, &wrong_o, ""),
        None => {}
    }
    let bits = |row: &usize| of_row(problem, output, *row);
    let is_number = |row: &&usize| {
        bits(row).iter().all(|&bits| widen(problem.dtype(), bits).is_finite())
            && expected(**row).iter().all(|o| o.is_finite())
    };
    let numbers: Vec<usize> = wrong_o.iter().filter(is_number).copied().collect();
    if numbers.is_empty() {
        // Whatever the mistake is, NaN hides it, most of all where inputs have it.
        let is_odd = |&bits: &u16| !widen(problem.dtype(), bits).is_finite();
        let weight = match oracle.qkv.iter().flatten().any(is_odd) {
            _ if sees_none(oracle, &wrong_o) => 1,
            true => CLEAR / 8,
            false => CLEAR / 2,
        };
        return Named { weight, ..place(of_nan(oracle, &wrong_o), &wrong_o, "") };
    }
    let suspect = Suspect::new(oracle, output, tolerance.allowed(), &numbers);
    let named = match suspect.explain() {
        Some(Explained { fault, how, is_doubtful, share }) => {
            let is_doubtful = is_doubtful || is_alike;
            let weight = suspect.weight().min(if is_doubtful { CLEAR / 2 } else { usize::MAX });
            let weight = (weight as f64 * share) as usize;
            return Named { weight, ..place(fault, &wrong_o, &how) };
        }
        None if numbers.len() < wrong_o.len() => place(of_nan(oracle, &wrong_o), &wrong_o, ""),
        None if suspect.is_near(tolerance.allowed()) => {
            let times = suspect.largest_error() / tolerance.allowed();
            place(Fault::Imprecise, &wrong_o, &format!("{times:.1} times what is allowed"))
        }
        None => place(Fault::WrongNumbers, &wrong_o, ""),
    };
    Named { weight: suspect.weight(), ..named }
}

/// An output that a kernel for ragged batches wrote, and that is wrong: what can be told of it from what stands there.
pub(super) fn of_ragged(problem: &Problem, output: &Output, [wrong_o, wrong_lse]: [&[usize]; 2]) -> Fault {
    let lse = |row: &usize| output.lse.as_ref().map_or(0, |lse| lse[*row].to_bits());
    let is_finite = |bits: &u16| widen(problem.dtype(), *bits).is_finite();
    match in_place_of_o(problem, output, wrong_o) {
        Some(fault) => fault,
        None if wrong_o.is_empty() && wrong_lse.iter().any(|row| lse(row) == u32::MAX) => Fault::NotWritten,
        None if wrong_o.is_empty() => Fault::WrongLse,
        None if wrong_o.iter().any(|&row| !of_row(problem, output, row).iter().all(is_finite)) => {
            Fault::WrongNan
        }
        None => Fault::WrongNumbers,
    }
}

/// O of a row, as the kernel wrote it.
fn of_row<'a>(problem: &Problem, output: &'a Output, row: usize) -> &'a [u16] {
    let start = row_start(problem, TensorRole::O, row_coordinates(problem, row));
    &output.o[start..start + problem.head_dim_v() as usize]
}

/// Whether O as it should be is the same number in all elements of these rows.
fn is_one_value(problem: &Problem, right: &Reference, rows: &[usize]) -> bool {
    let width = problem.head_dim_v() as usize;
    let start = |&row: &usize| row_start(problem, TensorRole::O, row_coordinates(problem, row));
    let mut values = rows.iter().flat_map(|row| right.o[start(row)..][..width].iter().copied());
    let Some(first) = values.next() else { return false };
    // But for the rounding of sums in float64.
    values.all(|value| (value - first).abs() <= 1e-9 * first.abs())
}

/// What stands in wrong rows instead of anything computed, where it is one thing.
fn in_place_of_o(problem: &Problem, output: &Output, wrong: &[usize]) -> Option<Fault> {
    let bits = || wrong.iter().flat_map(|&row| of_row(problem, output, row).iter().copied());
    let first = bits().next()?;
    // The NaN that outputs are filled with is not the one that arithmetic gives.
    if bits().any(|bits| bits == POISON) {
        Some(Fault::NotWritten)
    } else if bits().all(|bits| bits & 0x7fff == 0) {
        Some(Fault::Zeros)
    } else if wrong.len() > 1 && widen(problem.dtype(), first).is_finite() && bits().all(|bits| bits == first)
    {
        Some(Fault::Constant)
    } else {
        None
    }
}

/// Whether NaN where a number should be is that of keys which the row does not see: of all rows that have any.
fn of_nan(oracle: &Oracle, wrong: &[usize]) -> Fault {
    let Oracle { problem, qkv, seqlens_k, reference: right, .. } = oracle;
    let sizes = problem.sizes();
    let head_dim = sizes.head_dim as usize;
    let hides_some = |&row: &usize| {
        let at @ [batch, head, row] = row_coordinates(problem, row);
        let start = row_start(problem, TensorRole::O, at);
        let is_number = right.o[start..start + head_dim].iter().all(|o| o.is_finite());
        let visible = visible_keys(problem, keys(problem, seqlens_k.as_deref(), batch), row);
        let is_odd = |key: usize| {
            [TensorRole::K, TensorRole::V].into_iter().any(|role| {
                let start = row_start(problem, role, [batch, head / problem.group() as usize, key]);
                let values = &qkv[role as usize][start..start + head_dim];
                values.iter().any(|&bits| !widen(problem.dtype(), bits).is_finite())
            })
        };
        is_number && (visible..sizes.seqlen_k as usize).any(is_odd)
    };
    // 0 / 0 of a row that sees no key is NaN too.
    let is_hidden = wrong.iter().all(hides_some) && !sees_none(oracle, wrong);
    if is_hidden { Fault::WrongMask } else { Fault::WrongNan }
}

/// Whether these rows see no key, so that NaN in them has several causes.
fn sees_none(oracle: &Oracle, rows: &[usize]) -> bool {
    let Oracle { problem, seqlens_k, .. } = oracle;
    rows.iter().all(|&row| {
        let [batch, _, row] = row_coordinates(problem, row);
        visible_keys(problem, keys(problem, seqlens_k.as_deref(), batch), row) == 0
    })
}

/// Which rows they are, in a few words.
fn region(problem: &Problem, rows: &[usize]) -> String {
    let span = |axis: usize| {
        let of = rows.iter().map(|&row| row_coordinates(problem, row)[axis]);
        let (least, most) = (of.clone().min().unwrap_or(0), of.max().unwrap_or(0));
        if least == most { least.to_string() } else { format!("{least}–{most}") }
    };
    let all = problem.lse_len();
    format!("{} of {all} rows (batch {}, head {}, row {})", rows.len(), span(0), span(1), span(2))
}
