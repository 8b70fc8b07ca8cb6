//! Findings as other tools read them: SARIF 2.1.0, and the annotations of GitHub Actions.

use crate::finding::{Finding, Severity, SourceLine};
use crate::summary::escaped;

impl Finding {
    /// The place to show: the source line, or the PTX line of the file of that name.
    fn place(&self, ptx: &str) -> SourceLine {
        match &self.source {
            Some(source) => source.clone(),
            None => SourceLine { file: ptx.to_owned(), line: self.line.max(1), called_at: Vec::new() },
        }
    }

    /// One line of GitHub Actions' workflow commands, which marks the source line in a pull request. `ptx` names the PTX.
    pub fn to_github(&self, ptx: &str) -> String {
        let data = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
        let property = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
        let place = self.place(ptx);
        format!(
            "::{} file={},line={},title={}::{}",
            self.severity.name(),
            property(&place.file),
            place.line,
            property(&format!("ptx-sim: {}", self.kind.name())),
            data(&self.to_string())
        )
    }

    /// One result of a SARIF run.
    fn sarif_result(&self, ptx: &str) -> String {
        let location = |place: &SourceLine| {
            let uri = escaped(&place.file.replace('\\', "/").replace(' ', "%20"));
            let line = place.line.max(1);
            format!(
                "{{\"physicalLocation\":{{\"artifactLocation\":{{\"uri\":\"{uri}\"}},\"region\":{{\"startLine\":{line}}}}}}}"
            )
        };
        let related =
            self.other_source.as_ref().map(|other| format!(",\"relatedLocations\":[{}]", location(other)));
        format!(
            "{{\"ruleId\":\"{}\",\"level\":\"{}\",\"message\":{{\"text\":\"{}\"}},\"locations\":[{}]{}}}",
            self.kind.name(),
            if self.severity == Severity::Warning { "warning" } else { "error" },
            escaped(&self.to_string()),
            location(&self.place(ptx)),
            related.unwrap_or_default()
        )
    }
}

/// A SARIF 2.1.0 log of one run with these findings. `ptx` names the PTX.
pub fn sarif(findings: &[&Finding], ptx: &str) -> String {
    let mut rules: Vec<&str> = findings.iter().map(|f| f.kind.name()).collect();
    rules.sort_unstable();
    rules.dedup();
    let rules: Vec<String> = rules.iter().map(|rule| format!("{{\"id\":\"{rule}\"}}")).collect();
    let results: Vec<String> = findings.iter().map(|f| f.sarif_result(ptx)).collect();
    format!(
        "{{\"$schema\":\"https://json.schemastore.org/sarif-2.1.0.json\",\"version\":\"2.1.0\",\"runs\":[{{\"tool\":{{\"driver\":\
         {{\"name\":\"ptx-sim\",\"version\":\"{}\",\"rules\":[{}]}}}},\"results\":[{}]}}]}}\n",
        env!("CARGO_PKG_VERSION"),
        rules.join(","),
        results.join(",")
    )
}
