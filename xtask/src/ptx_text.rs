//! PTX as text: its entries, the launch bounds that rustc cannot say, and one module cut out for one entry.

/// Why a text is not read as PTX.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PtxTextError {
    #[error("line {line}: an entry without a name, a parameter list or a body")]
    BrokenEntry { line: usize },
    #[error("line {line}: a brace, parenthesis, comment or string is never closed")]
    Unclosed { line: usize },
    #[error("entry {entry} has {directive} already")]
    AlreadyBound { entry: String, directive: &'static str },
    #[error("entry {entry} has no parameter with an alignment")]
    NoParameter { entry: String },
    #[error("the entry {entry} is not in the PTX")]
    NoSuchEntry { entry: String },
}

/// What rustc cannot say of an entry: its launch bounds (PTX ISA, "Performance-Tuning Directives") and how its parameter lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// `.maxntid`: threads of a CTA.
    pub(crate) threads: u32,
    /// `.minnctapersm`: CTAs an SM must be able to hold; nothing is said where `None`.
    pub(crate) min_ctas: Option<u32>,
    /// `.align` of its one parameter, in bytes; what rustc says stays where `None`.
    pub(crate) param_align: Option<u32>,
}

/// A module, split at its entries.
#[derive(Clone, Debug)]
pub(crate) struct Module<'a> {
    pieces: Vec<Piece<'a>>,
}

#[derive(Clone, Debug)]
enum Piece<'a> {
    /// Header, variables and functions: what every entry may refer to.
    Shared(&'a str),
    Entry(Entry<'a>),
}

#[derive(Clone, Copy, Debug)]
struct Entry<'a> {
    name: &'a str,
    /// From `.visible` to the closing parenthesis.
    signature: &'a str,
    /// What stands between signature and body: directives, if any.
    between: &'a str,
    /// From brace to brace.
    body: &'a str,
}

impl<'a> Module<'a> {
    /// Splits a module.
    pub(crate) fn parse(text: &'a str) -> Result<Self, PtxTextError> {
        let mut pieces = Vec::new();
        let (mut shared_from, mut at) = (0, 0);
        while at < text.len() {
            let Some(next) = skip_token(text, at)? else { break };
            let word = &text[at..next];
            if word == ".entry" {
                let (entry, start, end) = parse_entry(text, at, next)?;
                pieces.push(Piece::Shared(&text[shared_from..start]));
                pieces.push(Piece::Entry(entry));
                (shared_from, at) = (end, end);
            } else if word == "{" {
                at = skip_group(text, at)?;
            } else {
                at = next;
            }
        }
        pieces.push(Piece::Shared(&text[shared_from..]));
        Ok(Module { pieces })
    }

    fn entries(&self) -> impl Iterator<Item = &Entry<'a>> {
        self.pieces
            .iter()
            .filter_map(|piece| if let Piece::Entry(entry) = piece { Some(entry) } else { None })
    }

    /// The entries' names, in order.
    pub(crate) fn entry_names(&self) -> Vec<&'a str> {
        self.entries().map(|entry| entry.name).collect()
    }

    /// The text of one entry alone, from its linkage to its closing brace.
    pub(crate) fn entry_text(&self, name: &str) -> Option<String> {
        let entry = self.entries().find(|entry| entry.name == name)?;
        Some(format!("{}{}{}", entry.signature, entry.between, entry.body))
    }

    /// The module with bounds between the parameter list and the body of each entry that `bounds` knows, and its parameter's alignment.
    pub(crate) fn with_bounds(
        &self,
        bounds: impl Fn(&str) -> Option<Bounds>,
    ) -> Result<String, PtxTextError> {
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Shared(shared) => text.push_str(shared),
                Piece::Entry(entry) => {
                    let bounds = bounds(entry.name);
                    match bounds.and_then(|bounds| bounds.param_align) {
                        Some(align) => text.push_str(&entry.aligned_signature(align)?),
                        None => text.push_str(entry.signature),
                    }
                    if let Some(bounds) = bounds {
                        entry.check_unbound()?;
                        text.push_str(&format!("\n.maxntid {}, 1, 1", bounds.threads));
                        if let Some(min_ctas) = bounds.min_ctas {
                            text.push_str(&format!("\n.minnctapersm {min_ctas}"));
                        }
                    }
                    text.push_str(entry.between);
                    text.push_str(entry.body);
                }
            }
        }
        Ok(text)
    }

    /// A module that holds one entry and everything that is not an entry.
    pub(crate) fn only(&self, name: &str) -> Result<String, PtxTextError> {
        let wanted =
            self.entry_text(name).ok_or_else(|| PtxTextError::NoSuchEntry { entry: name.to_owned() })?;
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Shared(shared) => text.push_str(shared),
                Piece::Entry(entry) if entry.name == name => text.push_str(&wanted),
                Piece::Entry(_) => {}
            }
        }
        Ok(text)
    }
}

/// What the compiler names by the number that a function has in its module: labels, and memory for the stack.
const NUMBERED: [&str; 2] = ["$L__BB", "__local_depot"];

/// PTX of one function without the number that it has in its module.
pub(crate) fn without_function_numbers(ptx: &str) -> String {
    let mut text = ptx.to_owned();
    for name in NUMBERED {
        let mut pieces = text.split(name);
        let first = pieces.next().unwrap_or_default().to_owned();
        text = pieces.fold(first, |text, piece| {
            text + name + piece.trim_start_matches(|character: char| character.is_ascii_digit())
        });
    }
    text
}

impl Entry<'_> {
    /// The signature with this alignment of its first parameter.
    fn aligned_signature(&self, align: u32) -> Result<String, PtxTextError> {
        const DIRECTIVE: &str = ".param .align ";
        let at = self.signature.find(DIRECTIVE).map(|at| at + DIRECTIVE.len());
        let at = at.ok_or_else(|| PtxTextError::NoParameter { entry: self.name.to_owned() })?;
        let (before, rest) = self.signature.split_at(at);
        let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        Ok(format!("{before}{align}{after}"))
    }

    fn check_unbound(&self) -> Result<(), PtxTextError> {
        for directive in [".maxntid", ".minnctapersm", ".reqntid"] {
            if self.between.contains(directive) {
                return Err(PtxTextError::AlreadyBound { entry: self.name.to_owned(), directive });
            }
        }
        Ok(())
    }
}

/// Reads the entry whose `.entry` stands at `keyword..after`; also where its text starts and ends.
fn parse_entry(text: &str, keyword: usize, after: usize) -> Result<(Entry<'_>, usize, usize), PtxTextError> {
    let broken = || PtxTextError::BrokenEntry { line: line_of(text, keyword) };
    let before = text[..keyword].trim_end();
    let linkage = [".visible", ".weak"].into_iter().find(|linkage| before.ends_with(linkage));
    let start = linkage.map_or(keyword, |linkage| before.len() - linkage.len());

    let name_end = next_token(text, after)?.ok_or_else(broken)?;
    let name = text[after..name_end].trim();
    let open = name_end + text[name_end..].find(|c: char| !c.is_whitespace()).ok_or_else(broken)?;
    if !text[open..].starts_with('(') || !name.starts_with(|c: char| c.is_alphabetic() || "_$%".contains(c)) {
        return Err(broken());
    }
    let params_end = skip_group(text, open)?;
    let mut body = params_end;
    loop {
        let token_end = next_token(text, body)?.ok_or_else(broken)?;
        let token = text[body..token_end].trim_start();
        if token == "{" {
            body = token_end - 1;
            break;
        }
        if token == ";" || token == "}" {
            return Err(broken());
        }
        body = token_end;
    }
    let end = skip_group(text, body)?;
    let entry = Entry {
        name,
        signature: &text[start..params_end],
        between: &text[params_end..body],
        body: &text[body..end],
    };
    Ok((entry, start, end))
}

/// The end of the next token that is neither blank nor comment.
fn next_token(text: &str, mut at: usize) -> Result<Option<usize>, PtxTextError> {
    loop {
        let Some(end) = skip_token(text, at)? else { return Ok(None) };
        let token = &text[at..end];
        if !token.trim().is_empty() && !token.starts_with("//") && !token.starts_with("/*") {
            return Ok(Some(end));
        }
        at = end;
    }
}

/// The end of the token at `at`: blanks, a comment, a string, a word, or one other character.
fn skip_token(text: &str, at: usize) -> Result<Option<usize>, PtxTextError> {
    let rest = &text[at..];
    let Some(first) = rest.chars().next() else { return Ok(None) };
    let is_word = |c: char| c.is_alphanumeric() || "._$%".contains(c);
    let length_while = |accept: &dyn Fn(char) -> bool| rest.find(|c| !accept(c)).unwrap_or(rest.len());
    let unclosed = || PtxTextError::Unclosed { line: line_of(text, at) };
    let length = if first.is_whitespace() {
        length_while(&char::is_whitespace)
    } else if rest.starts_with("//") {
        length_while(&|c| c != '\n')
    } else if let Some(comment) = rest.strip_prefix("/*") {
        2 + comment.find("*/").ok_or_else(unclosed)? + 2
    } else if first == '"' {
        // PTX strings (file names of .file and .loc) know no escapes.
        1 + rest[1..].find('"').ok_or_else(unclosed)? + 1
    } else if is_word(first) {
        length_while(&is_word)
    } else {
        first.len_utf8()
    };
    Ok(Some(at + length))
}

/// The end of the group that opens at `open` with a parenthesis or a brace.
fn skip_group(text: &str, open: usize) -> Result<usize, PtxTextError> {
    let mut depth = 0usize;
    let mut at = open;
    while let Some(end) = skip_token(text, at)? {
        match &text[at..end] {
            "(" | "{" => depth += 1,
            ")" | "}" => depth -= 1,
            _ => {}
        }
        at = end;
        if depth == 0 {
            return Ok(at);
        }
    }
    Err(PtxTextError::Unclosed { line: line_of(text, open) })
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = r#"//
// Generated by LLVM NVPTX Back-End
//
.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 128 .b8 dyn_smem[];
.func helper() { ret; }
	// .globl	fwd_a

.visible .entry fwd_a(
	.param .align 8 .b8 fwd_a_param_0[64] // a stray { ( in a comment
)
{
	.reg .b32 	%r<6>;
	{ .reg .b16 tmp; /* } */ }
	mma.sync {%r1, %r2}, {%r3};
	ret;

}
	// .globl	fwd_b
.visible .entry fwd_b()
{
	ret;
}
.file 1 "odd } name"
"#;

    fn bounds(name: &str) -> Option<Bounds> {
        (name == "fwd_a").then_some(Bounds { threads: 128, min_ctas: Some(2), param_align: None })
    }

    #[test]
    fn entries_are_found_in_order() {
        let module = Module::parse(PTX).expect("parses");
        assert_eq!(module.entry_names(), ["fwd_a", "fwd_b"]);
        let text = module.entry_text("fwd_a").expect("there");
        assert!(text.starts_with(".visible .entry fwd_a(") && text.ends_with("ret;\n\n}"), "{text}");
        assert_eq!(module.entry_text("fwd_c"), None);
    }

    #[test]
    fn bounds_stand_between_parameters_and_body_and_nothing_else_changes() {
        let module = Module::parse(PTX).expect("parses");
        let bound = module.with_bounds(bounds).expect("unbound before");
        let inserted = "\n.maxntid 128, 1, 1\n.minnctapersm 2";
        assert!(bound.contains(&format!("in a comment\n){inserted}\n{{\n")), "{bound}");
        assert_eq!(bound.replace(inserted, ""), PTX);
        assert_eq!(bound.matches(".maxntid").count(), 1);
    }

    #[test]
    fn a_parameter_gets_the_alignment_that_its_entry_needs() {
        let module = Module::parse(PTX).expect("parses");
        let aligned = |entry: &str| {
            let align = |name: &str| {
                let bounds = Bounds { threads: 128, min_ctas: None, param_align: Some(64) };
                (name == entry).then_some(bounds)
            };
            module.with_bounds(align)
        };
        let text = aligned("fwd_a").expect("it has a parameter");
        assert!(text.contains("\t.param .align 64 .b8 fwd_a_param_0[64] //"), "{text}");
        assert_eq!(
            text.replace(".align 64 .b8 fwd_a", ".align 8 .b8 fwd_a").replace("\n.maxntid 128, 1, 1", ""),
            PTX
        );
        assert_eq!(aligned("fwd_b"), Err(PtxTextError::NoParameter { entry: "fwd_b".to_owned() }));
    }

    #[test]
    fn bounds_are_never_inserted_twice() {
        let once = Module::parse(PTX).expect("parses").with_bounds(bounds).expect("unbound before");
        let twice = Module::parse(&once).expect("parses").with_bounds(bounds);
        assert_eq!(
            twice,
            Err(PtxTextError::AlreadyBound { entry: "fwd_a".to_owned(), directive: ".maxntid" })
        );
    }

    #[test]
    fn a_module_of_one_entry_keeps_all_that_is_shared() {
        let module = Module::parse(PTX).expect("parses");
        let only = module.only("fwd_b").expect("there");
        assert_eq!(Module::parse(&only).expect("parses").entry_names(), ["fwd_b"]);
        for shared in [".version 7.0", "dyn_smem", ".func helper", ".file 1"] {
            assert!(only.contains(shared), "{shared}: {only}");
        }
        assert!(!only.contains("fwd_a_param_0"));
        assert_eq!(module.only("x").err(), Some(PtxTextError::NoSuchEntry { entry: "x".to_owned() }));
    }

    #[test]
    fn a_module_without_entries_is_itself() {
        let module = Module::parse(".version 7.0\n").expect("parses");
        assert!(module.entry_names().is_empty());
        assert_eq!(module.with_bounds(bounds).as_deref(), Ok(".version 7.0\n"));
    }

    #[test]
    fn broken_text_is_refused_at_its_line() {
        let error = |text: &str| Module::parse(text).expect_err("broken");
        assert_eq!(error("\n.visible .entry a(\n"), PtxTextError::Unclosed { line: 2 });
        assert_eq!(error(".entry a()\n{ ret;"), PtxTextError::Unclosed { line: 2 });
        assert_eq!(error("\n\n.entry a();"), PtxTextError::BrokenEntry { line: 3 });
        assert_eq!(error(".entry (a) {}"), PtxTextError::BrokenEntry { line: 1 });
        assert_eq!(error("/* open"), PtxTextError::Unclosed { line: 1 });
    }

    #[test]
    fn the_number_of_a_function_leaves_no_trace() {
        let of = |number: u32| {
            format!(
                ".local .b8 __local_depot{number}[8];\n$L__BB{number}_1:\n\t@%p1 bra $L__BB{number}_12;\n$L__BB{number}_12:\n\tret;"
            )
        };
        assert_ne!(of(3), of(107));
        assert_eq!(without_function_numbers(&of(3)), without_function_numbers(&of(107)));
        assert_eq!(
            without_function_numbers("bra $L__BB3_12; add.s32 %r1, %r2, 34;"),
            "bra $L__BB_12; add.s32 %r1, %r2, 34;"
        );
        assert_ne!(without_function_numbers("bra $L__BB3_1;"), without_function_numbers("bra $L__BB3_2;"));
    }
}
