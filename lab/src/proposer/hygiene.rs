//! What a patch may not add to a file, whatever the file is called: state that outlives a launch, text from elsewhere, switches of
//! the build, symbols of its own, clocks; and what it may not take away: tests.
//!
//! Both versions of a file are cut into Rust's tokens, so that comments and names that only look alike count for nothing, and what
//! was there before may stay, move or be written otherwise: only more of it is refused.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeMap;
use std::path::Path;

/// Files that the host reads too: kernels are launched by what they say.
const HOSTS: [&str; 5] = ["table.rs", "row.rs", "row_check.rs", "params.rs", "manifest.rs"];

/// Macros that bring in text from elsewhere, or PTX of a module's own.
const MACROS: [&str; 8] = [
    "include",
    "include_str",
    "include_bytes",
    "env",
    "option_env",
    "global_asm",
    "thread_local",
    "concat_idents",
];
/// Words that no kernel needs more of: state, symbols and libraries of its own.
const WORDS: [&str; 2] = ["static", "extern"];
/// Words in attributes that change what is compiled, or under which name.
const ATTRIBUTES: [&str; 14] = [
    "path",
    "feature",
    "cfg_attr",
    "no_mangle",
    "export_name",
    "link_section",
    "linkage",
    "link",
    "link_name",
    "used",
    "naked",
    "global_allocator",
    "macro_export",
    "ignore",
];
/// What assembly may not say: variables of a module, and registers by which a kernel could tell who watches it, or when.
pub const PTX: [&str; 10] = [
    ".global .",
    ".const .",
    "%clock",
    "%globaltimer",
    "%smid",
    "%nsmid",
    "%gridid",
    "%envreg",
    "%pm0",
    "%lanemask_clock",
];

/// Something that a patch may not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// There is more of something in a file than before.
    #[error("{path}:{line}: it adds `{what}`, which no patch may")]
    Adds {
        /// The file.
        path: String,
        /// The last line that has it.
        line: usize,
        /// What it is.
        what: String,
    },
    /// There is less of something in a file than before.
    #[error("{path}: it takes away {count} of `{what}`: tests stay as they are")]
    TakesAway {
        /// The file.
        path: String,
        /// How many.
        count: usize,
        /// What it is.
        what: &'static str,
    },
    /// What nobody can look through.
    #[error("{path}: it is not made of Rust's tokens")]
    NotRust {
        /// The file.
        path: String,
    },
    /// A file that the host reads too.
    #[error("{path}: the host launches kernels by this file, so it stays as it is")]
    Hosts {
        /// The file.
        path: String,
    },
}

/// Compares two versions of a file, of which one may be missing.
///
/// # Errors
/// The first thing that the change may not do.
pub fn check(path: &str, before: &str, after: &str) -> Result<(), Breach> {
    let name = path.strip_prefix(super::DEVICE_SOURCE).unwrap_or(path);
    if is_the_hosts(name) || Path::new(name).file_name().is_some_and(|name| name == "build.rs") {
        return Err(Breach::Hosts { path: path.to_owned() });
    }
    let Some(after) = Found::of(after) else { return Err(Breach::NotRust { path: path.to_owned() }) };
    let before = Found::of(before).unwrap_or_default();
    for (what, lines) in &after.forbidden {
        let known = before.forbidden.get(what).map_or(0, Vec::len);
        if lines.len() > known {
            let line = lines.last().copied().unwrap_or(0);
            return Err(Breach::Adds { path: path.to_owned(), line, what: what.clone() });
        }
    }
    for (what, before, after) in
        [("#[test]", before.tests, after.tests), ("assert", before.asserts, after.asserts)]
    {
        if after < before {
            return Err(Breach::TakesAway { path: path.to_owned(), count: before - after, what });
        }
    }
    Ok(())
}

/// Whether the host reads a file of the device crate's source too.
pub fn is_the_hosts(file: &str) -> bool {
    HOSTS.contains(&file)
}

/// What matters of a file.
#[derive(Default)]
struct Found {
    /// What no patch may add more of, with its lines.
    forbidden: BTreeMap<String, Vec<usize>>,
    tests: usize,
    asserts: usize,
}

impl Found {
    /// What a text has; `None` where it is no Rust.
    fn of(text: &str) -> Option<Found> {
        let mut found = Found::default();
        found.look(text.parse().ok()?, false);
        Some(found)
    }

    fn look(&mut self, stream: TokenStream, is_attribute: bool) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let is = |at: usize, mark: char| matches!(tokens.get(at), Some(TokenTree::Punct(c)) if c.as_char() == mark);
        let word = |at: usize| match tokens.get(at) {
            Some(TokenTree::Ident(word)) => word.to_string(),
            _ => String::new(),
        };
        for (at, token) in tokens.iter().enumerate() {
            let line = token.span().start().line;
            let before = |back: usize, mark: char| at.checked_sub(back).is_some_and(|at| is(at, mark));
            match token {
                TokenTree::Group(group) => {
                    let begins = before(1, '#') || (before(1, '!') && before(2, '#'));
                    let is_attribute = is_attribute || (begins && group.delimiter() == Delimiter::Bracket);
                    let inner = group.stream();
                    // A comment on an item is an attribute too.
                    if !(begins && is_comment(&inner)) {
                        self.look(inner, is_attribute);
                    }
                }
                TokenTree::Ident(name) if is_attribute => {
                    let name = name.to_string();
                    self.tests += usize::from(name == "test" && tokens.len() == 1);
                    if ATTRIBUTES.contains(&name.as_str()) {
                        self.add(&format!("#[{name}]"), line);
                    }
                }
                TokenTree::Ident(name) if !before(1, '\'') => {
                    let name = name.to_string();
                    self.asserts += usize::from(name.starts_with("assert") && is(at + 1, '!'));
                    if WORDS.contains(&name.as_str()) {
                        self.add(&name, line);
                    }
                    // Also renamed, as in `use core::include as harmless;`.
                    let names_it = is(at + 1, '!') || word(at + 1) == "as" || before(1, ':');
                    if MACROS.contains(&name.as_str()) && names_it {
                        self.add(&format!("{name}!"), line);
                    }
                }
                TokenTree::Literal(text) => {
                    let text = text.to_string();
                    PTX.into_iter().filter(|ptx| text.contains(ptx)).for_each(|ptx| self.add(ptx, line));
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }

    fn add(&mut self, what: &str, line: usize) {
        self.forbidden.entry(what.to_owned()).or_default().push(line);
    }
}

/// Whether the tokens of an attribute are `doc = "…"`.
fn is_comment(attribute: &TokenStream) -> bool {
    let tokens: Vec<TokenTree> = attribute.clone().into_iter().collect();
    matches!(&tokens[..], [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Literal(_)] if name == "doc")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "kernels-gpu/src/math/softmax.rs";
    const BEFORE: &str = "//! S.\nuse x::y;\n#[inline]\nfn f(a: &'static str) -> u32 {\n    asm!(\"mov.u32 {r}, %tid.x;\");\n    1\n}\n\
        #[cfg(test)]\nmod tests {\n    #[test]\n    fn works() {\n        assert_eq!(super::f(\"\"), 1);\n    }\n}\n";

    fn added(text: &str) -> Result<(), Breach> {
        check(FILE, BEFORE, &BEFORE.replace("#[inline]\n", &format!("#[inline]\n{text}\n")))
    }

    #[test]
    fn what_cheats_in_the_source_need_is_refused_wherever_it_stands() {
        for text in [
            "static COUNT: AtomicU32 = AtomicU32::new(0);",
            "pub(crate) static mut X: u32 = 0;",
            "fn g() { static  Y : u8 = 1; }",
            "macro_rules! m { () => { static\nZ: u8 = 1; } }",
            "include!(\"/etc/passwd\");",
            "const A: &str = include_str!(\"../../../lab/lab.toml\");",
            "const B: &[u8] = core::include_bytes! (\"x\");",
            "use core::include as harmless;",
            "const C: &str = env!(\"HOME\");",
            "const D: Option<&str> = option_env /* */ ! (\"LAB\");",
            "#[path = \"../../host/src/lib.rs\"] mod other;",
            "#[cfg_attr(all(), path = \"x.rs\")] mod other;",
            "#![feature(asm_experimental_arch)]",
            "#[cfg(feature = \"fast\")] fn h() {}",
            "#[unsafe(no_mangle)] fn memcpy() {}",
            "#[unsafe(export_name = \"fwd\")] fn fwd() {}",
            "#[unsafe(link_section = \".init\")] fn s() {}",
            "unsafe extern \"C\" { fn malloc(n: usize) -> *mut u8; }",
            "extern crate std;",
            "global_asm!(\".visible .global .align 4 .u32 seen;\");",
            "fn g() { asm!(\".global .u32 seen;\"); }",
            "fn g() { asm!(\"mov.u64 {r}, %clock64;\"); }",
            "fn g() { asm!(r#\"mov.u64 {r}, %globaltimer;\"#); }",
            "fn g() { asm!(\"mov.u32 {r}, %smid;\"); }",
            "thread_local! { }",
        ] {
            let found = added(text);
            assert!(matches!(found, Err(Breach::Adds { .. })), "{text}: {found:?}");
        }
        let removed = BEFORE.replace("    #[test]\n", "");
        assert!(matches!(check(FILE, BEFORE, &removed), Err(Breach::TakesAway { count: 1, .. })));
        let weaker = BEFORE.replace("assert_eq!(super::f(\"\"), 1);", "let _ = super::f(\"\");");
        assert!(matches!(check(FILE, BEFORE, &weaker), Err(Breach::TakesAway { .. })));
        let ignored = BEFORE.replace("#[test]", "#[test]\n    #[ignore]");
        assert!(matches!(check(FILE, BEFORE, &ignored), Err(Breach::Adds { .. })));
        assert!(matches!(check(FILE, BEFORE, ""), Err(Breach::TakesAway { .. })));
        for text in ["fn f( {", "\"", "const A: char = '"] {
            assert!(matches!(added(text), Err(Breach::NotRust { .. })), "{text}");
        }
        for file in HOSTS {
            let path = format!("kernels-gpu/src/{file}");
            assert!(matches!(check(&path, "a", "b"), Err(Breach::Hosts { .. })), "{path}");
        }
    }

    #[test]
    fn honest_changes_are_not_refused() {
        for text in [
            "// static, include!(\"x\"), #[path = \"y\"]",
            "/* static /* nested */ extern \"C\" */",
            "/// Reads `env!(\"X\")` never; %clock either.",
            "const NAME: &str = \"static\";",
            "const QUOTE: char = '\"'; const Q2: char = '\\''; fn q<'a>(x: &'a u8) -> &'a u8 { x }",
            "fn g<T: 'static>(x: &'static T) -> &'static T { x }",
            "#[inline(always)] #[must_use] fn g() {}",
            "#[cfg(target_arch = \"nvptx64\")] fn g() {}",
            "#[rustfmt::skip] const T: [u8; 2] = [1, 2];",
            "fn path(path: u32, used: u32, link: u32, test: u32) -> u32 { path + used + link + test }",
            "fn env(include: u32) -> u32 { include }",
            "const RAW: &str = r#\"a \"quoted\" static\"#;",
            "fn r#static() {}",
            "fn g() { unsafe { asm!(\"ex2.approx.ftz.f32 {d}, {a};\") } }",
            "const LANES: u32 = 32; mod more { pub fn f() {} }",
            "type F = fn(u32) -> u32;",
            "macro_rules! steps { ($($n:literal)*) => { $( step($n); )* } }",
            "#[derive(Clone, Copy)] struct S { row_max: f32 }",
            "impl S { #[allow(clippy::inline_always)] fn f(self) {} }",
            "#[test] fn more() { assert!(true); }",
        ] {
            assert_eq!(added(text), Ok(()), "{text}");
        }
        // What is there may move, be indented otherwise, and go.
        let known = "static KEPT: u8 = 1;\nfn a() {}\n";
        assert_eq!(check(FILE, known, "fn a() {}\n\n    static\n  KEPT: u8 = 2;\n"), Ok(()));
        assert_eq!(check(FILE, known, "fn a() {}\n"), Ok(()));
        assert_eq!(check(FILE, BEFORE, &BEFORE.replace('\n', "\r\n")), Ok(()));
    }
}
