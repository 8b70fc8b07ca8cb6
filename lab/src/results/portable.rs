//! Records without the paths of the machine that they are from.

use serde_json::Value;

/// The value with every absolute path in its texts cut to the last part.
pub(crate) fn portable(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(without_folders(&text)),
        Value::Array(values) => values.into_iter().map(portable).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, portable(value))).collect(),
        other => other,
    }
}

fn without_folders(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, path) = rest.split_at(at);
        kept += before;
        let end = path.find(|c: char| !is_of_path(c)).unwrap_or(path.len());
        let (path, after) = path.split_at(end);
        // `a/b` is a path of the project or a fraction, `//` a comment, `/dev/null` the same everywhere.
        let starts_a_word = kept.chars().next_back().is_none_or(|c| !is_of_path(c) && !"~}$*)>".contains(c));
        let folders = path[1..].split('/').filter(|part| !part.is_empty()).count();
        let is_absolute = starts_a_word && !path.starts_with("//") && !path.starts_with("/dev/");
        if is_absolute && folders > 1 {
            // A stop ends the sentence, not the path.
            let name = path.trim_end_matches(['/', '.']);
            kept += name.rsplit('/').next().unwrap_or_default();
            kept += &path[name.len()..];
        } else {
            kept += path;
        }
        rest = after;
    }
    kept + rest
}

fn is_of_path(c: char) -> bool {
    c.is_alphanumeric() || "._-+@/".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_lose_their_folders_and_nothing_else_changes() {
        let path = |parts: &[&str]| format!("/{}", parts.join("/"));
        let log = path(&["home", "somebody", "lab-runs", "1", "build.log"]);
        assert_eq!(without_folders(&format!("failed; see {log}.")), "failed; see build.log.");
        assert_eq!(
            without_folders(&format!("--ptx={log}:12: bad\n\"{log}\"")),
            "--ptx=build.log:12: bad\n\"build.log\""
        );
        for same in [
            "1/2",
            "--- a/kernels-gpu/src/mask.rs",
            "--- /dev/null",
            "x // why",
            "TFLOP/s",
            "/",
            "a /b c",
            "{x}/y/z",
        ] {
            assert_eq!(without_folders(same), same);
        }
        let value = serde_json::json!({ "a": [log, 1.25, null], "b": { "c": true } });
        assert_eq!(
            portable(value),
            serde_json::json!({ "a": ["build.log", 1.25, null], "b": { "c": true } })
        );
    }
}
