//! The few SVG elements that charts are made of.

use std::fmt::Write;

/// Text as XML shows it.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            // What XML has no place for.
            c if c.is_control() && c != '\n' && c != '\t' => {}
            c => escaped.push(c),
        }
    }
    escaped
}

/// A drawing that grows. Places are in pixels from the upper left; classes are those of the style sheet.
pub(super) struct Drawing {
    text: String,
}

impl Drawing {
    /// An empty drawing with a name for those who cannot see it.
    pub(super) fn new(class: &str, width: f64, height: f64, name: &str) -> Self {
        let name = escape(name);
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"{class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-label=\"{name}\">\n"
        );
        Self { text }
    }

    /// The drawing's text.
    pub(super) fn finish(self) -> String {
        self.text + "</svg>\n"
    }

    pub(super) fn line(&mut self, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
        ));
    }

    pub(super) fn path(&mut self, class: &str, points: &[[f64; 2]]) {
        let mut steps = String::new();
        for (i, [x, y]) in points.iter().enumerate() {
            let letter = if i == 0 { 'M' } else { 'L' };
            // Writing to a string does not fail.
            let _ = write!(steps, "{letter}{x:.1} {y:.1}");
        }
        self.push(format_args!("<path class=\"{class}\" d=\"{steps}\"/>\n"));
    }

    /// `anchor` is `start`, `middle` or `end`.
    pub(super) fn text(&mut self, class: &str, anchor: &str, [x, y]: [f64; 2], text: &str) {
        let text = escape(text);
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" dominant-baseline=\"middle\">{text}</text>\n"
        ));
    }

    /// A mark with a text that shows when the pointer is near.
    pub(super) fn mark(&mut self, class: &str, [x, y]: [f64; 2], hover: &str) {
        let hover = escape(hover);
        self.push(format_args!(
            "<g><title>{hover}</title><circle class=\"hit\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"10\"/>\
             <circle class=\"mark {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/></g>\n"
        ));
    }

    fn push(&mut self, what: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_ends_a_tag() {
        assert_eq!(escape("a<b>&\"c\u{0}\""), "a&lt;b&gt;&amp;&quot;c&quot;");
        let drawing = Drawing::new("", 1.0, 1.0, "\"><script>").finish();
        assert!(!drawing.contains("<script>"));
    }
}
