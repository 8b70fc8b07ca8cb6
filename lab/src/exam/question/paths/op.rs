//! What operations make of values, as far as these are known.

/// An operation by its name, the type of what it reads, and that of what it writes.
#[derive(Clone, Debug)]
pub(super) struct Op {
    pub(super) name: String,
    /// Its qualifiers, which follow the name and precede the types: `lo`, `rn`, `eq`.
    pub(super) words: Vec<String>,
    pub(super) of: Type,
    pub(super) to: Type,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Type {
    pub(super) kind: u8,
    pub(super) bits: u32,
}

/// What is known of a register.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    NotWritten,
    Known(u64),
    Unknown,
}

/// Operands of any operation that is computed, and more.
const MOST: usize = 8;

pub(super) fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

impl Op {
    pub(super) fn read(op: &str) -> Option<Op> {
        let mut words = op.split('.');
        let name = words.next()?.to_owned();
        let (types, words): (Vec<&str>, Vec<&str>) = words.partition(|word| Type::read(word).is_some());
        let types: Vec<Type> = types.into_iter().filter_map(Type::read).collect();
        let (of, to) = (*types.last()?, *types.first()?);
        Some(Op { name, words: words.into_iter().map(str::to_owned).collect(), of, to })
    }

    /// Whether its result is one of few.
    pub(super) fn decides(&self) -> bool {
        self.of.kind == b'p' || matches!(self.name.as_str(), "setp" | "and" | "rem")
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|own| own == word)
    }

    /// What comes out; not known as soon as it could be more than one number.
    pub(super) fn of_values(&self, from: &[Value]) -> Value {
        let known = |value: &Value| match value {
            Value::Known(value) => Some(*value),
            _ => None,
        };
        if from.contains(&Value::NotWritten) {
            return Value::NotWritten;
        }
        // 0 of whatever is 0, and a predicate that is false ends a conjunction.
        let decides = match self.name.as_str() {
            "and" | "mul" => from.contains(&Value::Known(0)).then_some(0),
            "or" if self.of.kind == b'p' => from.contains(&Value::Known(1)).then_some(1),
            "selp" => match from {
                [yes, no, Value::Known(which)] => known(if *which != 0 { yes } else { no }),
                [yes, no, _] if yes == no => known(yes),
                _ => None,
            },
            _ => None,
        };
        let computed = decides.or_else(|| {
            let mut all = [0; MOST];
            let all = all.get_mut(..from.len())?;
            for (to, value) in all.iter_mut().zip(from) {
                *to = known(value)?;
            }
            self.compute(all)
        });
        computed.map_or(Value::Unknown, |value| Value::Known(value & mask(self.result_bits())))
    }

    fn result_bits(&self) -> u32 {
        match self.name.as_str() {
            "setp" => 1,
            _ if self.has("wide") => 2 * self.of.bits,
            _ => self.to.bits,
        }
    }

    fn compute(&self, from: &[u64]) -> Option<u64> {
        let Type { kind, bits } = self.of;
        if kind == b'f' {
            return self.compute_float(from);
        }
        let signed = |value: u64| ((value << (64 - bits)) as i64) >> (64 - bits);
        let plain = |value: u64| value & mask(bits);
        let wide =
            |value: u64| if kind == b's' { i128::from(signed(value)) } else { i128::from(plain(value)) };
        let high = |value: i128| if self.has("hi") { value >> bits } else { value };
        let by = |value: u64| (value as u32).min(64);
        let value: i128 = match (self.name.as_str(), from) {
            ("cvt", [a]) if self.to.kind == b'f' && self.to.bits == 32 => (wide(*a) as f32).to_bits().into(),
            ("mov" | "cvt" | "cvta", [a]) => wide(*a),
            ("add", [a, b]) => wide(*a) + wide(*b),
            ("sub", [a, b]) => wide(*a) - wide(*b),
            ("mul", [a, b]) => high(wide(*a) * wide(*b)),
            ("mad", [a, b, c]) => {
                let c = if self.has("wide") { i128::from(*c) } else { wide(*c) };
                high(wide(*a) * wide(*b)) + c
            }
            ("div", [a, b]) if plain(*b) != 0 => wide(*a) / wide(*b),
            ("rem", [a, b]) if plain(*b) != 0 => wide(*a) % wide(*b),
            ("min", [a, b]) => wide(*a).min(wide(*b)),
            ("max", [a, b]) => wide(*a).max(wide(*b)),
            ("and", [a, b]) => (a & b).into(),
            ("or", [a, b]) => (a | b).into(),
            ("xor", [a, b]) => (a ^ b).into(),
            ("not", [a]) => (!a).into(),
            ("neg", [a]) => -wide(*a),
            ("abs", [a]) => wide(*a).abs(),
            ("shl", [a, b]) => (i128::from(*a) << by(*b)) & i128::from(u64::MAX),
            ("shr", [a, b]) => wide(*a) >> by(*b),
            ("popc", [a]) => plain(*a).count_ones().into(),
            ("clz", [a]) => (plain(*a).leading_zeros() - (64 - bits)).into(),
            ("setp", [a, b, rest @ ..]) => {
                let (a, b) = (wide(*a), wide(*b));
                let is = self.compare(a.partial_cmp(&b))?;
                self.with_predicate(is, rest)?.into()
            }
            _ => return None,
        };
        Some(value as u64)
    }

    fn compute_float(&self, from: &[u64]) -> Option<u64> {
        let float = |value: u64| f32::from_bits(value as u32);
        if self.of.bits != 32 {
            return None;
        }
        let value = match (self.name.as_str(), from) {
            ("mov", [a]) => float(*a),
            ("add", [a, b]) => float(*a) + float(*b),
            ("sub", [a, b]) => float(*a) - float(*b),
            ("mul", [a, b]) => float(*a) * float(*b),
            ("div", [a, b]) => float(*a) / float(*b),
            ("neg", [a]) => -float(*a),
            ("abs", [a]) => float(*a).abs(),
            ("setp", [a, b, rest @ ..]) => {
                let is = self.compare(float(*a).partial_cmp(&float(*b)))?;
                return Some(self.with_predicate(is, rest)?.into());
            }
            _ => return None,
        };
        Some(value.to_bits().into())
    }

    fn compare(&self, order: Option<std::cmp::Ordering>) -> Option<bool> {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let how = self.words.first()?;
        let is_unordered = how.len() == 3 && how.ends_with('u');
        Some(
            match how.trim_end_matches('u') {
                "eq" => order == Some(Equal),
                "ne" => order.is_some_and(|order| order != Equal),
                "lt" | "lo" => order == Some(Less),
                "le" | "ls" => matches!(order, Some(Less | Equal)),
                "gt" | "hi" => order == Some(Greater),
                "ge" | "hs" => matches!(order, Some(Greater | Equal)),
                _ => return None,
            } || (is_unordered && order.is_none()),
        )
    }

    /// A comparison, together with another predicate where there is one.
    fn with_predicate(&self, is: bool, rest: &[u64]) -> Option<bool> {
        match rest {
            [] => Some(is),
            [other] if self.has("and") => Some(is && *other != 0),
            [other] if self.has("or") => Some(is || *other != 0),
            [other] if self.has("xor") => Some(is != (*other != 0)),
            _ => None,
        }
    }
}

impl Type {
    pub(super) fn read(word: &str) -> Option<Type> {
        if word == "pred" {
            return Some(Type { kind: b'p', bits: 1 });
        }
        let (kind, bits) = word.split_at_checked(1)?;
        let bits = bits.parse().ok().filter(|bits| matches!(bits, 8 | 16 | 32 | 64))?;
        matches!(kind, "u" | "s" | "b" | "f").then_some(Type { kind: kind.as_bytes()[0], bits })
    }
}
