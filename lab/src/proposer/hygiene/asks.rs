//! What tests ask: no patch may take a test away, or have it ask less.
//!
//! Whatever is compiled for tests alone stays, token by token, wherever it moves. It may be formatted otherwise and commented, names may be
//! replaced by new ones throughout, and calls may get more arguments: a condition or a loop around an assertion decides whether it asks at
//! all, so nothing else may be added.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};

/// What is compiled for tests alone, of some files, and every name in these.
#[derive(Default)]
pub(super) struct Asks {
    items: Vec<Item>,
    names: BTreeSet<String>,
}

/// A test, or what tests share.
pub(super) struct Item {
    pub(super) path: String,
    pub(super) name: String,
    /// What it is compiled under.
    conditions: String,
    tokens: Vec<String>,
}

impl Asks {
    pub(super) fn add_file(&mut self, path: &str, stream: TokenStream) {
        self.add_names(stream.clone());
        self.add_items(path, stream, "");
    }

    fn add_names(&mut self, stream: TokenStream) {
        for token in stream {
            match token {
                TokenTree::Ident(name) => {
                    self.names.insert(name.to_string());
                }
                TokenTree::Group(group) => self.add_names(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// The items of a file or a module.
    fn add_items(&mut self, path: &str, stream: TokenStream, around: &str) {
        let (mut conditions, mut item) = (around.to_owned(), Vec::new());
        for token in without_comments(stream) {
            // `#![cfg(…)]` holds for all of them.
            if let [.., TokenTree::Punct(hash), TokenTree::Punct(mark)] = &item[..]
                && (hash.as_char(), mark.as_char()) == ('#', '!')
                && let TokenTree::Group(group) = &token
            {
                conditions += &group.stream().to_string();
                item.clear();
                continue;
            }
            let ends = match &token {
                TokenTree::Punct(mark) => mark.as_char() == ';',
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                _ => false,
            };
            item.push(token);
            if ends {
                self.add_item(path, std::mem::take(&mut item), &conditions);
            }
        }
    }

    fn add_item(&mut self, path: &str, item: Vec<TokenTree>, around: &str) {
        let mut tokens = Vec::new();
        item.iter().for_each(|token| flatten(token, &mut tokens));
        let words: Vec<String> = item.iter().filter_map(word).collect();
        let behind = |keyword: &str| {
            let at = words.iter().position(|word| word == keyword)?;
            words.get(at + 1).cloned()
        };
        let attributes: Vec<String> = item
            .windows(2)
            .filter_map(|pair| match pair {
                [TokenTree::Punct(hash), TokenTree::Group(group)] if hash.as_char() == '#' => {
                    Some(group.stream().to_string())
                }
                _ => None,
            })
            .collect();
        let own: String = attributes.iter().filter(|text| text.starts_with("cfg")).cloned().collect();
        if let (Some(_), Some(TokenTree::Group(body))) = (behind("mod"), item.last()) {
            return self.add_items(path, body.stream(), &(around.to_owned() + &own));
        }
        let is_for_tests =
            around.contains("test") || own.contains("test") || attributes.iter().any(|text| text == "test");
        let is_of_others =
            words.iter().any(|word| word == "use") && tokens.last().is_some_and(|token| token == ";");
        if is_for_tests && !is_of_others && !words.is_empty() {
            let name = behind("fn").or_else(|| words.last().cloned()).unwrap_or_default();
            let conditions = around.to_owned();
            self.items.push(Item { path: path.to_owned(), name, conditions, tokens });
        }
    }

    /// What of these is gone, or asks less, where the files are as in `after`; those of `hidden` files are not compiled.
    pub(super) fn missing<'a>(&'a self, after: &Asks, is_hidden: &dyn Fn(&str) -> bool) -> Option<&'a Item> {
        let mut left: Vec<&Item> = after.items.iter().filter(|item| !is_hidden(&item.path)).collect();
        for item in &self.items {
            // An equal one first: what is alike but for names is another's.
            let equal = left
                .iter()
                .position(|other| other.conditions == item.conditions && other.tokens == item.tokens);
            let is_kept = |other: &&Item| {
                (&other.conditions, &other.name) == (&item.conditions, &item.name)
                    && (self.is_renamed(&item.tokens, after, &other.tokens)
                        || has_more(&item.tokens, &other.tokens))
            };
            match equal.or_else(|| left.iter().position(is_kept)) {
                Some(at) => left.swap_remove(at),
                None => return Some(item),
            };
        }
        None
    }

    /// Whether two items differ in names alone, each of which is new for one that is gone.
    fn is_renamed(&self, before: &[String], after: &Asks, now: &[String]) -> bool {
        let mut named: BTreeMap<&str, &str> = BTreeMap::new();
        before.len() == now.len()
            && before.iter().zip(now).all(|(old, new)| {
                let is_fixed = old.starts_with("assert") || matches!(old.as_str(), "true" | "false");
                let is_new = !is_fixed
                    && self.names.contains(old)
                    && !after.names.contains(old)
                    && !self.names.contains(new);
                old == new || (is_new && after.names.contains(new) && *named.entry(old).or_insert(new) == new)
            })
    }
}

/// Whether an item is another with more type arguments, paths, arguments behind those that there were, and messages, and nothing else.
fn has_more(before: &[String], now: &[String]) -> bool {
    const KEYWORDS: [&str; 13] = [
        "as", "break", "continue", "else", "false", "fn", "for", "if", "let", "loop", "match", "return",
        "while",
    ];
    let mut old = before.iter().peekable();
    for (at, new) in now.iter().enumerate() {
        if old.next_if_eq(&new).is_some() {
            continue;
        }
        let is_end = old.peek().is_some_and(|next| matches!(next.as_str(), ")" | "]"));
        let is_begin = at > 1 && now[at - 1] == "(" && now[at - 2] == "!";
        let is_word = new.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '"'));
        let may_be_added = match new.as_str() {
            ":" | "<" | ">" => true,
            "," => is_end,
            word => is_word && !KEYWORDS.contains(&word) && !word.starts_with("assert"),
        };
        if !may_be_added || is_begin {
            return false;
        }
    }
    old.next().is_none()
}

fn word(token: &TokenTree) -> Option<String> {
    if let TokenTree::Ident(word) = token { Some(word.to_string()) } else { None }
}

/// Tokens as text, groups with their delimiters and without a comma at their end, which formatting adds.
fn flatten(token: &TokenTree, into: &mut Vec<String>) {
    match token {
        TokenTree::Group(group) => {
            let [open, close] = match group.delimiter() {
                Delimiter::Parenthesis => ["(", ")"],
                Delimiter::Brace => ["{", "}"],
                Delimiter::Bracket => ["[", "]"],
                Delimiter::None => ["", ""],
            };
            into.push(open.to_owned());
            without_comments(group.stream()).iter().for_each(|token| flatten(token, into));
            into.pop_if(|last| last == ",");
            into.push(close.to_owned());
        }
        other => into.push(other.to_string()),
    }
}

/// Tokens without comments on items, which are attributes.
fn without_comments(stream: TokenStream) -> Vec<TokenTree> {
    let mut kept: Vec<TokenTree> = Vec::new();
    for token in stream {
        if let TokenTree::Group(group) = &token
            && group.delimiter() == Delimiter::Bracket
            && super::is_comment(&group.stream())
        {
            // `#` or `#!`.
            let is_mark = |token: &mut TokenTree| matches!(token, TokenTree::Punct(mark) if matches!(mark.as_char(), '#' | '!'));
            while kept.pop_if(is_mark).is_some() {}
            continue;
        }
        kept.push(token);
    }
    kept
}
