//! What a patch may not add to a file, whatever the file is called: state that outlives a launch, text from elsewhere, switches of
//! the build, symbols of its own, clocks; and what it may not take away: tests.
//!
//! Both versions of a file are cut into Rust's tokens, so that comments and names that only look alike count for nothing, and what
//! was there before may stay, move or be written otherwise: only more of it is refused.

mod asks;
mod hosts;
mod ptx;

pub use hosts::Hosts;
pub use ptx::{in_ptx, variable_in_ptx};

use asks::Asks;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeMap;
use std::path::Path;

/// Macros that bring in text from elsewhere, tell where and how it is compiled, or bring PTX of a module's own.
const MACROS: [&str; 10] = [
    "include",
    "include_str",
    "include_bytes",
    "env",
    "option_env",
    "file",
    "cfg_select",
    "global_asm",
    "thread_local",
    "concat_idents",
];
/// Words that no kernel needs more of: state, symbols and libraries of its own, what tells the path of a file as `file!` does, and what decides
/// whether a test finds two values equal.
const WORDS: [&str; 4] = ["static", "extern", "Location", "PartialEq"];
/// Macros of the standard library that tests call: one of the same name would answer for them.
const OF_TESTS: [&str; 6] = ["matches", "panic", "unreachable", "vec", "format", "debug_assert"];
/// Names by which a test, or what it calls, ends the program that runs all tests, or keeps a failure from it.
const ENDS: [&str; 10] = [
    "process",
    "exit",
    "_exit",
    "exit_group",
    "abort",
    "catch_unwind",
    "resume_unwind",
    "set_hook",
    "take_hook",
    "panic_any",
];
/// Words of assembly that ask the system of the host for something, or end the kernel's text and begin another.
const SYSTEM: [&str; 6] = ["syscall", "sysenter", "int 0x80", ".entry", ".func", ".alias"];
/// Words in attributes that change what is compiled, or under which name.
const ATTRIBUTES: [&str; 13] = [
    "path",
    "feature",
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
/// What a condition of compilation may ask: whether tests or kernels are compiled. What else it could ask is how the lab compiles.
const CONDITIONS: [&str; 8] = ["cfg", "cfg_attr", "test", "target_arch", "not", "all", "any", "doc"];
/// Macros that make a test.
const ASSERTS: [&str; 6] =
    ["assert", "assert_eq", "assert_ne", "debug_assert", "debug_assert_eq", "debug_assert_ne"];

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
    /// A test is gone, asks less, or is not compiled as before.
    #[error("{path}: it takes away `{what}`, or some of what it asks: tests and modules stay")]
    TakesAway {
        /// The file.
        path: String,
        /// What it is.
        what: String,
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
    /// A file that is no module of the kernels.
    #[error(
        "{path}: cargo makes a program of its own of a file that is called so, which is no part of any kernel"
    )]
    Program {
        /// The file.
        path: String,
    },
}

/// A file before and after a patch; empty where it is not there.
pub struct Change {
    /// The path, from the repository's root.
    pub path: String,
    /// What it was.
    pub before: String,
    /// What it is.
    pub after: String,
}

/// Compares the files that a patch changes. What is in one before may be in another after.
///
/// # Errors
/// The first thing that the change may not do.
pub fn check(changes: &[Change], hosts: &Hosts) -> Result<(), Breach> {
    let (mut before, mut after) = (Found::default(), Found::default());
    for Change { path, before: old, after: new } in changes {
        let name = path.strip_prefix(super::DEVICE_SOURCE).unwrap_or(path);
        let file = Path::new(name).file_name().unwrap_or_default();
        if hosts.read(name) {
            return Err(Breach::Hosts { path: path.clone() });
        }
        if file == "build.rs" || name == "main.rs" || name.starts_with("bin/") {
            return Err(Breach::Program { path: path.clone() });
        }
        // A file that was none does not hide what is in it now.
        let _ = before.add_file(path, old);
        after.add_file(path, new).ok_or_else(|| Breach::NotRust { path: path.clone() })?;
    }
    // Who hides a file takes its tests away; and a file that no module is made of is not compiled.
    let gone: Vec<String> =
        changes.iter().filter(|change| change.after.is_empty()).map(|change| stem(&change.path)).collect();
    if let Some((name, path)) =
        before.modules.iter().find(|(name, _)| !after.modules.contains_key(*name) && !gone.contains(name))
    {
        return Err(Breach::TakesAway { path: path.clone(), what: format!("mod {name}") });
    }
    let is_new = |path: &str| changes.iter().any(|change| change.path == path && change.before.is_empty());
    let modules = std::mem::take(&mut after.modules);
    let is_hidden = |path: &str| is_new(path) && !modules.contains_key(&stem(path));
    for (what, places) in &after.forbidden {
        let known = before.forbidden.get(what).map_or(0, Vec::len);
        if places.len() > known {
            let (path, line) = places.last().cloned().unwrap_or_default();
            return Err(Breach::Adds { path, line, what: what.clone() });
        }
    }
    if let Some(item) = before.asks.missing(&after.asks, &is_hidden) {
        return Err(Breach::TakesAway { path: item.path.clone(), what: item.name.clone() });
    }
    Ok(())
}

/// The name of the module that a file is.
fn stem(path: &str) -> String {
    let path = Path::new(path);
    let is_mod = path.file_name().is_some_and(|name| name == "mod.rs");
    let named = if is_mod { path.parent().and_then(Path::file_name) } else { path.file_stem() };
    named.unwrap_or_default().to_string_lossy().into_owned()
}

/// What matters of some files.
#[derive(Default)]
struct Found {
    path: String,
    /// What no patch may add more of, with files and lines.
    forbidden: BTreeMap<String, Vec<(String, usize)>>,
    /// What is compiled for tests.
    asks: Asks,
    /// Modules that are files of their own, with the file that says so.
    modules: BTreeMap<String, String>,
}

/// Where tokens are.
#[derive(Clone, Copy, Default)]
struct Within {
    is_attribute: bool,
    is_macro: bool,
    is_condition: bool,
    /// Whether it is within an item that is compiled for tests alone.
    is_of_tests: bool,
    /// Whether it is part of an item, such as a function's body, and no item of a module.
    is_body: bool,
}

impl Found {
    /// Adds what a text has; `None` where it is no Rust.
    fn add_file(&mut self, path: &str, text: &str) -> Option<()> {
        path.clone_into(&mut self.path);
        let stream: TokenStream = text.parse().ok()?;
        self.asks.add_file(path, stream.clone());
        self.look(stream, &Within::default());
        Some(())
    }

    fn look(&mut self, stream: TokenStream, within: &Within) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let is = |at: usize, mark: char| matches!(tokens.get(at), Some(TokenTree::Punct(c)) if c.as_char() == mark);
        let word = |at: usize| match tokens.get(at) {
            Some(TokenTree::Ident(word)) => word.to_string(),
            _ => String::new(),
        };
        // Of the item that is read: where it begins, and whether it is for tests alone.
        let (mut begin, mut is_of_tests) = (0, within.is_of_tests);
        for (at, token) in tokens.iter().enumerate() {
            let line = token.span().start().line;
            let before = |back: usize, mark: char| at.checked_sub(back).is_some_and(|at| is(at, mark));
            match token {
                TokenTree::Group(group) => {
                    let begins = before(1, '#') || (before(1, '!') && before(2, '#'));
                    let (inner, delimiter) = (group.stream(), group.delimiter());
                    if begins && delimiter == Delimiter::Bracket {
                        // A comment on an item is an attribute too.
                        if !is_comment(&inner) {
                            is_of_tests |= is_for_tests(&inner);
                            let [condition, rest] = condition_and_rest(inner);
                            self.look_at_condition(&condition, within, line);
                            let is_attribute = true;
                            self.look(condition, &Within { is_attribute, is_condition: true, ..*within });
                            // A condition behind a condition is looked for in vain.
                            if rest.to_string().contains("cfg") {
                                self.add("#[cfg_attr]", line);
                            }
                            self.look(rest, &Within { is_attribute, ..*within });
                        }
                        continue;
                    }
                    let of_macro = before(1, '!') || (before(2, '!') && !word(at - 1).is_empty());
                    let mut deeper = Within { is_macro: within.is_macro || of_macro, is_of_tests, ..*within };
                    let is_cfg = of_macro && word(at.saturating_sub(2)) == "cfg";
                    deeper.is_condition |= is_cfg;
                    if is_cfg && !within.is_of_tests && has_word(&inner, "test") {
                        self.add("cfg!(test)", line);
                    }
                    deeper.is_body |= delimiter == Delimiter::Brace && !holds_items(&tokens[begin..at]);
                    self.look(inner, &deeper);
                    if delimiter == Delimiter::Brace {
                        (begin, is_of_tests) = (at + 1, within.is_of_tests);
                    }
                }
                TokenTree::Punct(mark) if mark.as_char() == ';' => {
                    (begin, is_of_tests) = (at + 1, within.is_of_tests);
                }
                TokenTree::Ident(ident) if !before(1, '\'') => {
                    let written = ident.to_string();
                    // `r#include!` is `include!`, but `r#static` no keyword.
                    let text = written.strip_prefix("r#").unwrap_or(&written).to_owned();
                    if text == "mod" && is(at + 2, ';') {
                        self.modules.insert(word(at + 1), self.path.clone());
                    }
                    let is_called = is(at + 1, '!');
                    let is_named = word(at + 1) == "as" || word(at.wrapping_sub(1)) == "as" || before(1, ':');
                    if within.is_attribute && ATTRIBUTES.contains(&text.as_str()) {
                        self.add(&format!("#[{text}]"), line);
                    }
                    if within.is_condition && !CONDITIONS.contains(&text.as_str()) {
                        self.add(&format!("cfg({text})"), line);
                    }
                    if !within.is_attribute && WORDS.contains(&written.as_str()) {
                        self.add(&text, line);
                    }
                    if !within.is_attribute && ENDS.contains(&text.as_str()) {
                        self.add(&text, line);
                    }
                    // Two names that look alike are read as one.
                    if !text.is_ascii() {
                        self.add(
                            &format!(
                                "{text}, a name with letters that are not ASCII ({})",
                                text.escape_unicode()
                            ),
                            line,
                        );
                    }
                    // Also renamed, as in `use core::include as harmless;`, and told to another macro.
                    if MACROS.contains(&text.as_str()) && (is_called || is_named || within.is_macro) {
                        self.add(&format!("{text}!"), line);
                    }
                    // Called it shows what it asks; by another name or told to a macro it does not.
                    if text == "cfg" && !within.is_attribute && (is_named || (within.is_macro && !is_called))
                    {
                        self.add("cfg!", line);
                    }
                    let is_defined = before(1, '!') && word(at.wrapping_sub(2)) == "macro_rules";
                    if OF_TESTS.iter().any(|name| text.starts_with(name))
                        && (is_defined || word(at.wrapping_sub(1)) == "as")
                    {
                        self.add(&format!("another {text}!"), line);
                    }
                    if text.starts_with("assert") {
                        let is_told = within.is_macro && !is_called && ASSERTS.contains(&text.as_str());
                        if is_named || is_told || is_defined {
                            self.add(&format!("another {text}!"), line);
                        }
                    }
                }
                // What an attribute says is no PTX.
                TokenTree::Literal(text) if !within.is_attribute => {
                    let text = text.to_string();
                    if let Some(ptx) = in_ptx(&text) {
                        self.add(ptx, line);
                    }
                    if let Some(word) = SYSTEM.into_iter().find(|word| text.contains(word)) {
                        self.add(word, line);
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// What tests alone are compiled with, or without, may be items of modules: a statement that is there in one of both builds makes tests run other
    /// code than kernels.
    fn look_at_condition(&mut self, condition: &TokenStream, within: &Within, line: usize) {
        if within.is_of_tests || !has_word(condition, "test") {
            return;
        }
        if has_word(condition, "not") && is_without_tests(condition) {
            self.add("cfg(not(test))", line);
        } else if within.is_body {
            self.add("cfg(test) within an item", line);
        }
    }

    fn add(&mut self, what: &str, line: usize) {
        self.forbidden.entry(what.to_owned()).or_default().push((self.path.clone(), line));
    }
}

/// Whether tokens have a word, however deep.
fn has_word(stream: &TokenStream, word: &str) -> bool {
    stream.clone().into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == word,
        TokenTree::Group(group) => has_word(&group.stream(), word),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// Whether a `not` of a condition is about tests.
fn is_without_tests(condition: &TokenStream) -> bool {
    let tokens: Vec<TokenTree> = condition.clone().into_iter().collect();
    tokens.iter().enumerate().any(|(at, token)| match token {
        TokenTree::Group(group) => {
            let is_not = at > 0 && matches!(&tokens[at - 1], TokenTree::Ident(word) if word == "not");
            (is_not && has_word(&group.stream(), "test")) || is_without_tests(&group.stream())
        }
        _ => false,
    })
}

/// Whether an attribute leaves what it stands on to tests alone: `test`, `cfg(test)`, `cfg(all(test, …))`.
fn is_for_tests(attribute: &TokenStream) -> bool {
    let text: String = attribute.to_string().chars().filter(|c| !c.is_whitespace()).collect();
    text == "test" || text == "cfg(test)" || text.starts_with("cfg(all(test,")
}

/// Whether braces behind these tokens hold items: of a module, a trait or an implementation.
fn holds_items(head: &[TokenTree]) -> bool {
    let is = |word: &str| head.iter().any(|token| matches!(token, TokenTree::Ident(ident) if ident == word));
    ["mod", "impl", "trait"].into_iter().any(is) && !["fn", "const", "static", "let"].into_iter().any(is)
}

/// The condition of an attribute, where it has one, and the rest of it.
fn condition_and_rest(attribute: TokenStream) -> [TokenStream; 2] {
    let tokens: Vec<TokenTree> = attribute.into_iter().collect();
    let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',');
    match &tokens[..] {
        [TokenTree::Ident(name), TokenTree::Group(group)] if name == "cfg_attr" => {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            let at = inner.iter().position(is_comma).unwrap_or(inner.len());
            [inner[..at].iter().cloned().collect(), inner[at..].iter().cloned().collect()]
        }
        [TokenTree::Ident(name), ..] if name.to_string().contains("cfg") => {
            [tokens.into_iter().collect(), TokenStream::new()]
        }
        _ => [TokenStream::new(), tokens.into_iter().collect()],
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
    use crate::tree::Tree;

    const FILE: &str = "kernels-gpu/src/math/softmax.rs";
    const BEFORE: &str = "//! S.\nuse x::y;\n#[inline]\nfn f(a: &'static str) -> u32 {\n    asm!(\"mov.u32 {r}, %tid.x;\");\n    1\n}\n\
        #[cfg(test)]\nmod tests {\n    use super::*;\n    const CASES: u32 = 3;\n    /// Some.\n    fn rows() -> [u32; 2] { [1, 2] }\n    \
        #[test]\n    fn works() {\n        assert_eq!(super::f(\"\"), 1);\n    }\n}\n";

    fn check(path: &str, before: &str, after: &str) -> Result<(), Breach> {
        let (path, before, after) = (path.to_owned(), before.to_owned(), after.to_owned());
        super::check(&[Change { path, before, after }], &Hosts::of(Tree::own().root()))
    }

    fn check_all(changes: &[Change]) -> Result<(), Breach> {
        super::check(changes, &Hosts::default())
    }

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
            "#[test] fn first() { std::process::exit(0) }",
            "#[test] fn first() { use std::process as p; p::exit(0) }",
            "#[test] fn first() { core::intrinsics::abort() }",
            "#[test] fn first() { std::panic::set_hook(Box::new(|_| ())) }",
            "#[test] fn first() { let _ = std::panic::catch_unwind(rows); }",
            "#[test] fn first() { unsafe { asm!(\"syscall\") } }",
            "fn g(n: u32) -> u32 { #[cfg(test)] if n > 7 { loop {} } n }",
            "fn g(n: u32) -> u32 { #[cfg(not(test))] let n = n & 3; n }",
            "fn g(n: u32) -> u32 { #[cfg(any(test, doc))] let n = n & 3; n }",
            "#[cfg(not(test))] fn g() {}",
            "#[cfg(all(not(any(test))))] fn g() {}",
            "fn g(n: u32) -> u32 { const M: u32 = 1; { #[cfg(test)] const M: u32 = 2; n + M } }",
            "struct T { #[cfg(test)] a: u32 }",
            "fn g() -> bool { cfg!(test) }",
            "fn g() -> bool { if cfg!(not(any(test))) { true } else { false } }",
            "fn qu\u{43e}tient() {}",
            "fn g(n: u32) -> u32 { let \u{43e} = n; \u{43e} }",
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
            "macro_rules! call { ($m:ident, $t:literal) => { $m!($t) } } const A: &str = call!(include_str, \"x\");",
            "fn g() { call! { env \"HOME\" } }",
            "#[doc = include_str!(\"x\")] fn g() {}",
            "fn g() { asm!(\".global\\t.u32 seen;\"); }",
            "fn g() { asm!(\"/* // */ mov.u32 {r}, %warpid;\"); }",
            "fn g() { asm!(\"}} .common .global .u32 seen; .func f() {{\"); }",
            "macro_rules! assert_eq { ($($t:tt)*) => {} }",
            "use core::compile_error as assert_eq;",
            "#[cfg(debug_assertions)] fn g() {}",
            "#[cfg(not(overflow_checks))] fn g() {}",
            "#[cfg(any(test, target_os = \"cuda\"))] fn g() {}",
            "#[cfg(ferroflash_lab)] fn g() {}",
            "r#include!(\"/etc/passwd\");",
            "const A: &str = core::r#include_str!(\"x\");",
            "#[r#path = \"x.rs\"] mod other;",
            "#[cfg(r#debug_assertions)] fn g() {}",
            "#[r#ignore] fn g() {}",
            "#[cfg_attr(debug_assertions, inline)] fn g() {}",
            "#[cfg_attr(test, cfg(overflow_checks))] fn g() {}",
            "macro_rules! m { ($n:ident) => { macro_rules! $n { ($($t:tt)*) => {} } } } m!(assert_eq);",
            "fn g() { asm!(\".extern .func (.param .b64 r) malloc (.param .b64 s);\"); }",
            "fn g() -> bool { cfg!(debug_assertions) }",
            "fn g() -> bool { core::cfg!(target_feature = \"sm_90a\") }",
            "const IN_LAB: bool = file!().len() > 40;",
            "const A: &str = concat!(file!(), \"x\");",
            "const P: &str = core::panic::Location::caller().file();",
            "use core::panic::Location as L; const P: u32 = L::caller().line();",
            "cfg_select! { overflow_checks => { fn g() {} } _ => { fn g() { h() } } }",
            "use core::cfg as ask; const D: bool = ask!(debug_assertions);",
            "macro_rules! ask { ($m:ident, $c:ident) => { $m!($c) } } const D: bool = ask!(cfg, debug_assertions);",
            "use core::{cfg as ask, include as harmless};",
            "macro_rules! matches { ($($t:tt)*) => { true } }",
            "macro_rules! debug_assert_eq { ($($t:tt)*) => {} }",
            "use core::stringify as vec;",
            "struct S; impl PartialEq for S { fn eq(&self, _: &S) -> bool { true } }",
            "impl core::cmp::PartialEq<u32> for S { fn eq(&self, _: &u32) -> bool { true } }",
            "fn g() { asm!(\"}} .visible .entry combine_f16() {{ ret;\"); }",
            "fn g() { asm!(\"/*\", \"// sm_90: griddepcontrol.wait;\", \"*/\"); }",
        ] {
            let found = added(text);
            assert!(matches!(found, Err(Breach::Adds { .. })), "{text}: {found:?}");
        }
        let asks = "assert_eq!(super::f(\"\"), 1);";
        for (from, to) in [
            ("    #[test]\n", ""),
            (asks, "let _ = super::f(\"\");"),
            (asks, "\u{430}ssert_eq!(super::f(\"\"), 1);"),
            (asks, "gone! { assert_eq!(super::f(\"\"), 1); }"),
            (asks, "return; assert_eq!(super::f(\"\"), 1);"),
            (asks, "for _ in 0..0 { assert_eq!(super::f(\"\"), 1); }"),
            (asks, "if false { assert_eq!(super::f(\"\"), 1); }"),
            (asks, "let _ = || assert_eq!(super::f(\"\"), 1);"),
            (asks, "assert_eq!(1, 1, \"{} {}\", super::f(\"\"), 1);"),
            (asks, "assert_eq!(super::f(\"\"), super::f(\"\"), \"{}\", 1);"),
            (asks, "assert_eq!(super::f(\"\") | 1, 1);"),
            (asks, "assert_ne!(super::f(\"\"), 2);"),
            (asks, "assert_eq!(super::f(\"\"), super::ONE);"),
            (asks, "std::process::exit(0); assert_eq!(super::f(\"\"), 1);"),
            ("fn rows() -> [u32; 2] { [1, 2] }", "fn rows() -> [u32; 0] { [] }"),
            ("const CASES: u32 = 3;", "const CASES: u32 = 0;"),
            ("fn works()", "fn works_no_more()"),
            ("#[cfg(test)]", "#[cfg(any())]"),
            ("#[cfg(test)]", "#[cfg(test)] #[cfg(target_arch = \"x\")]"),
            ("    #[test]", "    #![cfg(any())]\n    #[test]"),
            ("    #[test]", "    #[cfg(any())] #[test]"),
            ("    #[test]", "    #[should_panic] #[test]"),
            ("    #[test]", "    #[test]\n    #[should_panic(expected = \"left\")]"),
            ("#[cfg(test)]\nmod tests {", "nothing! {\n#[cfg(test)]\nmod tests {"),
        ] {
            let mut less = BEFORE.replace(from, to);
            if to.starts_with("nothing") {
                less += "}\n";
            }
            let found = check(FILE, BEFORE, &less);
            // What is added is told first: a name that only looks alike, the end of the program, tests within a macro.
            let is_refused = match found {
                Err(Breach::Adds { .. }) => {
                    !to.is_ascii() || to.contains("exit") || to.starts_with("nothing")
                }
                ref found => matches!(found, Err(Breach::TakesAway { .. })),
            };
            assert!(is_refused, "{to}: {found:?}");
        }
        let ignored = BEFORE.replace("#[test]", "#[test]\n    #[ignore]");
        assert!(matches!(check(FILE, BEFORE, &ignored), Err(Breach::Adds { .. })));
        assert!(matches!(check(FILE, BEFORE, ""), Err(Breach::TakesAway { .. })));
        for text in ["fn f( {", "\"", "const A: char = '"] {
            assert!(matches!(added(text), Err(Breach::NotRust { .. })), "{text}");
        }
        for file in ["table.rs", "params/bulk.rs", "divisor.rs", "steps.rs", "backward/row.rs"] {
            let path = format!("kernels-gpu/src/{file}");
            assert!(matches!(check(&path, "a", "b"), Err(Breach::Hosts { .. })), "{path}");
        }
        for file in ["main.rs", "bin/kernel.rs", "math/build.rs", "build.rs"] {
            let path = format!("kernels-gpu/src/{file}");
            assert!(matches!(check(&path, "a", "b"), Err(Breach::Program { .. })), "{path}");
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
            "#[cfg(all(test, not(target_arch = \"nvptx64\")))] fn g() {}",
            "fn g() -> bool { cfg!(target_arch = \"nvptx64\") }",
            "#[rustfmt::skip] const T: [u8; 2] = [1, 2];",
            "fn path(path: u32, used: u32, link: u32, test: u32) -> u32 { path + used + link + test }",
            "fn env(include: u32) -> u32 { include }",
            "const RAW: &str = r#\"a \"quoted\" static\"#;",
            "fn r#static() {}",
            "#[derive(Clone, PartialEq, Eq)] struct S; fn g(vec: u32, format: u32) -> u32 { vec + format }",
            "fn g(x: u32) -> bool { matches!(x, 1 | 2) || x as u8 == 3 }",
            "fn g() { unsafe { asm!(\"ex2.approx.ftz.f32 {d}, {a};\") } }",
            "const LANES: u32 = 32; mod more { pub fn f() {} }",
            "type F = fn(u32) -> u32;",
            "macro_rules! steps { ($($n:literal)*) => { $( step($n); )* } }",
            "#[derive(Clone, Copy)] struct S { row_max: f32 }",
            "impl S { #[allow(clippy::inline_always)] fn f(self) {} }",
            "#[test] fn more() { assert!(true); }",
            "#[cfg_attr(test, derive(Debug))] struct S;",
            "// \u{4e2d}\u{6587} static include!, \u{43f}\u{43e}-\u{440}\u{443}\u{441}\u{441}\u{43a}\u{438}",
            "#[expect(unused)] fn g() {}",
            "const _: () = assert!(size_of::<u32>() == 4);",
            "#[expect(unused, reason = \".global is no word of Rust's, nor is %clock\")] fn g() {}",
            "#[test] #[should_panic] fn fails() { assert!(false) }",
            "fn file(file: u32) -> u32 { file } struct Place { file: u32 }",
            "#[cfg(test)] macro_rules! both { ($($t:tt)*) => { #[cfg(test)] $($t)* } }",
            "mod inner { #[cfg(test)] fn g() {} }",
            "impl S { #[cfg(test)] fn g(self) { #[cfg(test)] let _ = 1; } }",
            "fn g(exits: u32, processed: u32) -> u32 { exits + processed }",
            "fn g() { unsafe { asm!(\"exit;\") } }",
        ] {
            assert_eq!(added(text), Ok(()), "{text}");
        }
        // A test may be written otherwise, and move to another file with what it asks about.
        let otherwise = BEFORE.replace("super::f(\"\"), 1", "super::f::<2>(\"\"), 1, \"of {}\", 2");
        assert_eq!(check(FILE, BEFORE, &otherwise), Ok(()));
        // Formatted otherwise, commented, with other imports, and with a new name for what is asked.
        let formatted =
            BEFORE.replace("{ [1, 2] }", "{\n // Two.\n [\n1,\n2,\n]\n }").replace("    /// Some.\n", "");
        assert_eq!(check(FILE, BEFORE, &formatted.replace("use super::*;", "use super::{self, f};")), Ok(()));
        let renamed = BEFORE.replace("fn f(", "fn first(").replace("super::f(", "super::first(");
        assert_eq!(check(FILE, BEFORE, &renamed), Ok(()));
        let more = BEFORE.replace("super::f(\"\")", "super::f(\"\", 0)");
        assert_eq!(check(FILE, BEFORE, &more), Ok(()));
        let (kept, moved) = BEFORE.split_at(BEFORE.find("#[cfg(test)]").expect("tests"));
        let change = |path: &str, before: &str, after: &str| Change {
            path: format!("kernels-gpu/src/math/{path}.rs"),
            before: before.to_owned(),
            after: after.to_owned(),
        };
        let declares = |before: &str, after: &str| change("mod", before, after);
        let all = [change("softmax", BEFORE, kept), change("sum", "", moved), declares("", "mod sum;")];
        assert_eq!(check_all(&all), Ok(()));
        // In a file that nobody compiles they are gone, and so are those of a file that nobody compiles any more.
        for hides in [
            &all[..2],
            &[declares("mod softmax;\nmod sum;", "mod sum;")],
            &[declares("mod softmax;", "mod softmax {}")],
        ] {
            assert!(matches!(check_all(hides), Err(Breach::TakesAway { .. })));
        }
        let none = [declares("mod softmax;\nmod sum;", "mod sum;"), change("softmax", "fn f() {}\n", "")];
        assert_eq!(check_all(&none), Ok(()));
        assert!(check_all(&[change("softmax", BEFORE, kept), change("sum", "", "")]).is_err());
        // What is there may move, be indented otherwise, and go.
        let known = "static KEPT: u8 = 1;\nfn a() {}\n";
        assert_eq!(check(FILE, known, "fn a() {}\n\n    static\n  KEPT: u8 = 2;\n"), Ok(()));
        assert_eq!(check(FILE, known, "fn a() {}\n"), Ok(()));
        assert_eq!(check(FILE, BEFORE, &BEFORE.replace('\n', "\r\n")), Ok(()));
    }
}
