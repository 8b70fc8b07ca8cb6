//! Reports as a table and as JSON, findings as JSON.

use std::fmt::{self, Write};

use crate::blocked::Blocked;
use crate::counters::{GlobalTraffic, SharedTraffic};
use crate::finding::{Finding, SourceLine};
use crate::report::{InstructionClass, Report};

impl Report {
    /// The single numbers of the report with their names; lines and sources are left out.
    pub fn numbers(&self) -> Vec<(String, u64)> {
        let mut list: Vec<(String, u64)> = [
            ("ctas", self.ctas),
            ("grid_ctas", self.grid_ctas),
            ("warps_per_cta", self.warps_per_cta.into()),
            ("shared_bytes", self.shared_bytes),
            ("warp_instructions", self.warp_instructions),
            ("thread_instructions", self.thread_instructions),
            ("wgmma", self.wgmma),
            ("wgmma_operand_bytes", self.wgmma_operand_bytes),
            ("tensor_flops", self.tensor_flops),
            ("barriers", self.barriers),
            ("mbarrier_waits", self.mbarrier_waits),
            ("divergent_branches", self.divergent_branches),
            ("atomics", self.atomics),
            ("bulk_copies", self.bulk_copies),
            ("bulk_load_bytes", self.bulk_load_bytes),
            ("bulk_store_bytes", self.bulk_store_bytes),
            ("local_bytes", self.local_bytes),
            ("async_groups", self.async_groups.into()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        for class in InstructionClass::ALL {
            list.push((format!("instructions.{}", class.name()), self.class(class)));
        }
        let global: [(&str, &GlobalTraffic); 3] = [
            ("global_load", &self.global_load),
            ("global_store", &self.global_store),
            ("async_global", &self.async_global),
        ];
        for (name, t) in global {
            let parts =
                [("requests", t.requests), ("sectors", t.sectors), ("lines", t.lines), ("bytes", t.bytes)];
            list.extend(parts.map(|(part, value)| (format!("{name}.{part}"), value)));
        }
        let shared: [(&str, &SharedTraffic); 3] = [
            ("shared_load", &self.shared_load),
            ("shared_store", &self.shared_store),
            ("async_shared", &self.async_shared),
        ];
        for (name, t) in shared {
            let parts = [
                ("requests", t.requests),
                ("wavefronts", t.wavefronts),
                ("conflicts", t.conflicts),
                ("bytes", t.bytes),
            ];
            list.extend(parts.map(|(part, value)| (format!("{name}.{part}"), value)));
        }
        list
    }

    /// The report as one JSON object: the numbers under their names, then `sources` and `lines`.
    pub fn to_json(&self) -> String {
        let mut text = String::from("{");
        for (name, value) in self.numbers() {
            // Writing to a string does not fail.
            let _ = write!(text, "\"{name}\":{value},");
        }
        let sources = self.sources.iter().map(|s| {
            let (line, warps, threads) = (s.source.line, s.warp_instructions, s.thread_instructions);
            let file = escaped(&s.source.file);
            format!("{{\"file\":\"{file}\",\"line\":{line},\"warp_instructions\":{warps},\"thread_instructions\":{threads}}}")
        });
        let _ = write!(text, "\"sources\":[{}],", sources.collect::<Vec<_>>().join(","));
        let lines = self
            .lines
            .iter()
            .map(|l| format!("[{},{},{}]", l.line, l.warp_instructions, l.thread_instructions));
        let warnings: Vec<String> = self.warnings.iter().map(Finding::to_json).collect();
        let _ = write!(text, "\"warnings\":[{}],", warnings.join(","));
        let _ = write!(text, "\"lines\":[{}]}}", lines.collect::<Vec<_>>().join(","));
        text
    }
}

impl Finding {
    /// The finding as one JSON object; what is not known is null.
    pub fn to_json(&self) -> String {
        fn known<T: ToString>(value: Option<T>) -> String {
            value.map_or_else(|| "null".to_owned(), |v| v.to_string())
        }
        fn place(of: &SourceLine) -> String {
            let (file, line) = (escaped(&of.file), of.line);
            let calls = if of.called_at.is_empty() {
                String::new()
            } else {
                format!(",\"called_at\":{:?}", of.called_at)
            };
            format!("{{\"file\":\"{file}\",\"line\":{line}{calls}}}")
        }
        let [x, y, z] = self.cta;
        let source = self.source.as_ref().map(place);
        let other = self.other.as_ref().map(|o| {
            let (line, warp, cta) = (known(o.line), known(o.warp), known(o.cta));
            let write = o.write;
            let source = self.other_source.as_ref().map(place);
            format!(
                "{{\"write\":{write},\"line\":{line},\"source\":{},\"warp\":{warp},\"lanes\":{},\"cta\":{cta}}}",
                known(source),
                o.lanes
            )
        });
        format!(
            "{{\"kind\":\"{}\",\"severity\":\"{}\",\"blame\":\"{}\",\"kernel\":\"{}\",\"line\":{},\"instruction\":\"{}\",\"source\":{},\"cta\":[{x},{y},{z}],\
             \"warp\":{},\"lane\":{},\"address\":{},\"other\":{},\"detail\":{},\"blocked\":[{}],\"seed\":{}}}",
            self.kind.name(),
            self.severity.name(),
            self.kind.blame().name(),
            escaped(&self.kernel),
            self.line,
            escaped(&self.instruction),
            known(source),
            self.warp,
            known(self.lane),
            known(self.address),
            known(other),
            known(self.detail.as_ref().map(|detail| format!("\"{}\"", escaped(detail)))),
            self.blocked.iter().map(Blocked::to_json).collect::<Vec<_>>().join(","),
            known(self.seed),
        )
    }
}

impl Blocked {
    /// As one JSON object: where, and what the warp waits for in words.
    fn to_json(&self) -> String {
        let (name, text) = (self.on.name(), escaped(&self.on.to_string()));
        format!(
            "{{\"warp\":{},\"lanes\":{},\"line\":{},\"on\":\"{name}\",\"for\":\"{text}\"}}",
            self.warp, self.lanes, self.line
        )
    }
}

pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ctas < self.grid_ctas {
            writeln!(f, "counted on {} of {} CTAs", self.ctas, self.grid_ctas)?;
        }
        for (name, value) in self.numbers().iter().filter(|(_, value)| *value > 0) {
            writeln!(f, "{name:<28} {value:>16}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_strings_are_escaped() {
        assert_eq!(escaped("a\"b\\c\n"), "a\\\"b\\\\c\\u000a");
    }
}
