//! The functions that the driver supplies: `malloc`, `free`, `vprintf`, `__assertfail` (CUDA programming guide, "Device-side
//! functions").

use std::fmt::Write;

use crate::finding::{Fault, FindingKind, Outcome};
use crate::op::{Service, ServiceName, Space};
use crate::regs::LANES;

use super::access::lanes;
use super::cta::Cta;
use super::warp::Warp;

/// Longest text that is read from a kernel's memory.
const MOST_TEXT: u64 = 1 << 16;

impl Warp {
    pub(super) fn service(&mut self, op: &Service, frame: usize, active: u32, cta: &mut Cta<'_>) -> Outcome {
        for lane in lanes(active) {
            let mut args = [0u64; 5];
            for (to, (at, bytes)) in args.iter_mut().zip(&op.args) {
                *to = self.argument(frame, lane, *at, *bytes)?;
            }
            let result = match op.name {
                ServiceName::Malloc => cta.launch.memory.malloc(args[0]),
                ServiceName::Free => {
                    if args[0] != 0 && !cta.launch.memory.heap.free(args[0]) {
                        let detail = "free of what malloc did not give, or a second time";
                        return Err(Fault::at(FindingKind::UseAfterFree, lane, args[0]).saying(detail));
                    }
                    0
                }
                ServiceName::Printf => {
                    let text = self.printf(lane, args[0], args[1], frame, cta)?;
                    let count = text.1;
                    cta.launch.print(&text.0);
                    count
                }
                ServiceName::AssertFail => {
                    let text = |warp: &mut Warp, at, cta: &mut Cta<'_>| warp.text(lane, at, frame, cta);
                    let message = text(self, args[0], cta)?;
                    let file = text(self, args[1], cta)?;
                    let function = text(self, args[3], cta)?;
                    let line = args[2] as u32;
                    let mut fault = Fault::new(FindingKind::Trap);
                    fault.lane = Some(lane);
                    return Err(
                        fault.saying(format!("{file}:{line}: {function}: assertion `{message}` failed"))
                    );
                }
            };
            if let Some((at, bytes)) = op.returns {
                let params = &mut self.frame(frame)?.params;
                let start = lane * (params.len() / LANES) + at as usize;
                let bytes = bytes.min(8) as usize;
                params[start..start + bytes].copy_from_slice(&result.to_le_bytes()[..bytes]);
            }
        }
        Ok(())
    }

    fn argument(&mut self, frame: usize, lane: usize, at: u32, bytes: u32) -> Outcome<u64> {
        let params = &self.frame(frame)?.params;
        let start = lane * (params.len() / LANES) + at as usize;
        let mut value = [0; 8];
        let bytes = bytes.min(8) as usize;
        value[..bytes].copy_from_slice(&params[start..start + bytes]);
        Ok(u64::from_le_bytes(value))
    }

    fn bytes(
        &mut self,
        lane: usize,
        address: u64,
        count: u32,
        frame: usize,
        cta: &mut Cta<'_>,
    ) -> Outcome<u64> {
        let words = self.read_defined(Space::Generic, address, (lane, count), frame, cta)?;
        Ok(u64::from(words[0]) | u64::from(words[1]) << 32)
    }

    /// The text at a generic address, up to its zero.
    fn text(&mut self, lane: usize, address: u64, frame: usize, cta: &mut Cta<'_>) -> Outcome<String> {
        let mut bytes = Vec::new();
        for at in 0..MOST_TEXT {
            match self.bytes(lane, address.wrapping_add(at), 1, frame, cta)? as u8 {
                0 => break,
                byte => bytes.push(byte),
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The printed text, and how many arguments it took.
    fn printf(
        &mut self,
        lane: usize,
        format: u64,
        arguments: u64,
        frame: usize,
        cta: &mut Cta<'_>,
    ) -> Outcome<(String, u64)> {
        let format = self.text(lane, format, frame, cta)?;
        let mut out = String::new();
        let (mut at, mut count) = (0u64, 0);
        let mut rest = format.as_str();
        while let Some(percent) = rest.find('%') {
            out.push_str(&rest[..percent]);
            rest = &rest[percent + 1..];
            let end = rest.find(|c: char| c.is_ascii_alphabetic() && !"hlLqjzt".contains(c) || c == '%');
            let Some(end) = end else { break };
            let (mut spec, kind) = (rest[..end].to_owned(), rest.as_bytes()[end]);
            rest = &rest[end + 1..];
            if kind == b'%' {
                out.push('%');
                continue;
            }
            // A width or a precision that is an argument, an int.
            while let Some(star) = spec.find('*') {
                at = at.next_multiple_of(4);
                let value = self.bytes(lane, arguments.wrapping_add(at), 4, frame, cta)? as i32;
                (at, count) = (at + 4, count + 1);
                spec = with_argument(&spec, star, value);
            }
            let wide = spec.contains(['l', 'q', 'j', 'z', 't']) || b"pseEfFgGaA".contains(&kind);
            let size = if wide { 8 } else { 4 };
            at = at.next_multiple_of(size);
            let value = self.bytes(lane, arguments.wrapping_add(at), size as u32, frame, cta)?;
            at += size;
            count += 1;
            let text = if kind == b's' { Some(self.text(lane, value, frame, cta)?) } else { None };
            // Writing to a string does not fail.
            let _ = write!(out, "{}", formatted(&spec, kind, value, wide, text));
        }
        out.push_str(rest);
        Ok((out, count))
    }
}

/// The conversion with `value` in place of the star. As in C a negative width is the flag `-`, a negative precision none.
fn with_argument(spec: &str, star: usize, value: i32) -> String {
    let (before, after) = (&spec[..star], &spec[star + 1..]);
    match before.strip_suffix('.') {
        Some(before) if value < 0 => format!("{before}{after}"),
        _ => format!("{before}{value}{after}"),
    }
}

/// One conversion of `printf`: flags, width and precision as in C.
fn formatted(spec: &str, kind: u8, value: u64, wide: bool, text: Option<String>) -> String {
    let flags = spec.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let digits_at = flags.find(|c: char| c.is_ascii_digit() && c != '0' || c == '.').unwrap_or(flags.len());
    let (flags, numbers) = flags.split_at(digits_at);
    let (width, precision) = match numbers.split_once('.') {
        Some((width, precision)) => (width.parse().unwrap_or(0), Some(precision.parse().unwrap_or(0usize))),
        None => (numbers.parse().unwrap_or(0usize), None),
    };
    let signed = match (wide, spec.matches('h').count()) {
        (true, _) => value as i64,
        (_, 0) => i64::from(value as i32),
        (_, 1) => i64::from(value as i16),
        _ => i64::from(value as i8),
    };
    let value = match (wide, spec.matches('h').count()) {
        (false, 1) => u64::from(value as u16),
        (false, 2) => u64::from(value as u8),
        _ => value,
    };
    let float = f64::from_bits(value);
    let (mut body, number) = match kind {
        b'd' | b'i' => (signed.to_string(), true),
        b'u' => (value.to_string(), true),
        b'x' => (format!("{value:x}"), true),
        b'X' => (format!("{value:X}"), true),
        b'o' => (format!("{value:o}"), true),
        b'p' => (format!("{value:#x}"), true),
        b'c' => (char::from(value as u8).to_string(), false),
        b's' => {
            let text = text.unwrap_or_default();
            (precision.map_or(text.clone(), |p| text.chars().take(p).collect()), false)
        }
        b'e' | b'E' => (exponential(float, precision.unwrap_or(6), kind), true),
        b'a' | b'A' => (hexadecimal(float, precision, kind), true),
        b'g' | b'G' => (general(float, precision.unwrap_or(6).max(1), kind), true),
        _ => (format!("{float:.*}", precision.unwrap_or(6)), true),
    };
    if let Some(precision) = precision.filter(|_| b"diuxXo".contains(&kind)) {
        let negative = body.starts_with('-');
        let digits = body.trim_start_matches('-');
        body = format!("{}{digits:0>precision$}", if negative { "-" } else { "" });
    }
    if b"xX".contains(&kind) && flags.contains('#') && value != 0 {
        body = format!("0{}{body}", char::from(kind));
    }
    if kind == b'o' && flags.contains('#') && !body.starts_with('0') {
        body.insert(0, '0');
    }
    if number && !body.starts_with('-') && b"dieEfFgGaA".contains(&kind) {
        if flags.contains('+') {
            body.insert(0, '+');
        } else if flags.contains(' ') {
            body.insert(0, ' ');
        }
    }
    let missing = width.saturating_sub(body.chars().count());
    if flags.contains('-') {
        body + &" ".repeat(missing)
    } else if flags.contains('0') && number {
        let sign = usize::from(body.starts_with(['-', '+', ' ']));
        format!("{}{}{}", &body[..sign], "0".repeat(missing), &body[sign..])
    } else {
        " ".repeat(missing) + &body
    }
}

fn exponential(x: f64, precision: usize, kind: u8) -> String {
    if !x.is_finite() {
        return x.to_string().to_lowercase();
    }
    let text = format!("{x:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}{}{sign}{digits:0>2}", char::from(kind))
}

/// `%a`: the significand's hexadecimal digits, without zeros at the end, and the binary exponent.
fn hexadecimal(x: f64, precision: Option<usize>, kind: u8) -> String {
    let sign = if x.is_sign_negative() { "-" } else { "" };
    let (mut fraction, biased) = (x.to_bits() & ((1 << 52) - 1), (x.to_bits() >> 52 & 0x7ff) as i32);
    let (mut first, exponent) = match (biased, fraction) {
        (0x7ff, 0) => return format!("{sign}inf"),
        (0x7ff, _) => return "nan".into(),
        (0, 0) => (0, 0),
        (0, _) => (0, -1022),
        _ => (1, biased - 1023),
    };
    let mut places = 13;
    if let Some(kept) = precision.filter(|p| *p < 13) {
        // Round to nearest, ties to even.
        let drop = 4 * (13 - kept as u32);
        let all = first << 52 | fraction;
        let (half, rest) = (1 << (drop - 1), all & ((1 << drop) - 1));
        let up = u64::from(rest > half || rest == half && all >> drop & 1 == 1);
        let rounded = (all >> drop) + up;
        (first, fraction) = (rounded >> (4 * kept), rounded & ((1 << (4 * kept)) - 1));
        places = kept;
    }
    let mut digits = if places == 0 { String::new() } else { format!("{fraction:0places$x}") };
    match precision {
        Some(precision) => digits.extend(std::iter::repeat_n('0', precision.saturating_sub(13))),
        None => digits.truncate(digits.trim_end_matches('0').len()),
    }
    let point = if digits.is_empty() { "" } else { "." };
    let text = format!("{sign}0x{first}{point}{digits}p{exponent:+}");
    if kind == b'A' { text.to_uppercase() } else { text }
}

fn general(x: f64, precision: usize, kind: u8) -> String {
    if x == 0.0 || !x.is_finite() {
        return x.to_string().to_lowercase();
    }
    let exponent = format!("{x:.*e}", precision - 1);
    let exponent: i32 = exponent.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |text: String| {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    if exponent < -4 || exponent >= precision as i32 {
        let text = exponential(x, precision - 1, if kind == b'G' { b'E' } else { b'e' });
        let at = text.find(['e', 'E']).unwrap_or(text.len());
        return trim(text[..at].to_owned()) + &text[at..];
    }
    trim(format!("{x:.*}", (precision as i32 - 1 - exponent).max(0) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_those_of_c() {
        let int = |spec, kind, value: i32| formatted(spec, kind, value as u32 as u64, false, None);
        assert_eq!(
            (int("5", b'd', -3), int("-5", b'd', 3), int("05", b'd', -3)),
            ("   -3".into(), "3    ".into(), "-0003".into())
        );
        assert_eq!(
            (int("#", b'x', 255), int("+", b'd', 7), int(".3", b'd', 7)),
            ("0xff".into(), "+7".into(), "007".into())
        );
        let float = |spec, kind, value: f64| formatted(spec, kind, value.to_bits(), true, None);
        assert_eq!((float("", b'f', 1.5), float("8.2", b'f', 2.625)), ("1.500000".into(), "    2.62".into()));
        assert_eq!(
            (float("", b'e', 12345.678), float("", b'g', 0.0001)),
            ("1.234568e+04".into(), "0.0001".into())
        );
        assert_eq!((float("", b'g', 1e20), float("", b'g', 100000.0)), ("1e+20".into(), "100000".into()));
        assert_eq!(formatted("5", b's', 0, true, Some("ab".into())), "   ab");
        assert_eq!(
            (int("hh", b'd', -1), int("hh", b'x', -1), int("h", b'd', 65_537)),
            ("-1".into(), "ff".into(), "1".into())
        );
        assert_eq!((int("#", b'o', 8), int("#", b'o', 0)), ("010".into(), "0".into()));
        assert_eq!(
            (float("", b'a', 1.0), float("", b'a', -0.3)),
            ("0x1p+0".into(), "-0x1.3333333333333p-2".into())
        );
        assert_eq!((float(".1", b'a', 1.97), float("", b'A', 31.0)), ("0x2.0p+0".into(), "0X1.FP+4".into()));
        assert_eq!((float("", b'a', 0.0), float(".0", b'a', 1.75)), ("0x0p+0".into(), "0x2p+0".into()));
    }

    #[test]
    fn widths_and_precisions_can_be_arguments() {
        assert_eq!((with_argument("*", 0, 6), with_argument(".*", 1, 2)), ("6".into(), ".2".into()));
        assert_eq!((with_argument("*", 0, -6), with_argument("5.*", 2, -1)), ("-6".into(), "5".into()));
    }
}
