//! The released `cuda_std_macros` marks kernels for a compiler back end that no package registry serves; this one
//! offers its `#[kernel]` on rustc's own NVPTX back end.

use proc_macro::{Delimiter, Spacing, Span, TokenStream, TokenTree};

/// Registers a function as a GPU kernel.
///
/// On `nvptx64`, `pub unsafe fn name(args)` becomes `#[unsafe(no_mangle)] pub unsafe extern "ptx-kernel" fn
/// name(args)`, an `.entry` of the PTX under its own name. On any other target the function stays as it was written, so
/// that the same source is type-checked on the host.
///
/// The crate that uses it needs `#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx))]`.
///
/// # Errors
/// A function that is not `unsafe`, has generic parameters, names an ABI or returns a value does not compile:
///
/// ```
/// #[cuda_std_macros::kernel]
/// pub unsafe fn copy(from: *const u32, to: *mut u32) { unsafe { *to = *from } }
/// let mut to = 0;
/// unsafe { copy(&7, &mut to) }; // off the device, a plain function
/// assert_eq!(to, 7);
/// ```
/// ```compile_fail
/// #[cuda_std_macros::kernel]
/// pub fn safe(to: *mut u32) {}
/// ```
/// ```compile_fail
/// #[cuda_std_macros::kernel]
/// pub unsafe fn generic<T>(to: *mut T) {}
/// ```
/// ```compile_fail
/// #[cuda_std_macros::kernel]
/// pub unsafe fn returns(to: *mut u32) -> u32 { 0 }
/// ```
/// ```compile_fail
/// #[cuda_std_macros::kernel]
/// pub unsafe extern "C" fn other_abi(to: *mut u32) {}
/// ```
#[proc_macro_attribute]
pub fn kernel(hints: TokenStream, item: TokenStream) -> TokenStream {
    if let Some(hint) = hints.into_iter().next() {
        return error(hint.span(), "#[kernel] takes no arguments");
    }
    let tokens: Vec<TokenTree> = item.into_iter().collect();
    match signature(&tokens) {
        Ok(fn_at) => both_targets(&tokens, fn_at),
        Err((span, message)) => error(span, message),
    }
}

/// The position of `fn`, once the signature around it is one that a kernel may have.
fn signature(tokens: &[TokenTree]) -> Result<usize, (Span, &'static str)> {
    let Some(fn_at) = tokens.iter().position(|token| is_ident(token, "fn")) else {
        return Err((Span::call_site(), "#[kernel] belongs on a function"));
    };
    let fn_span = tokens[fn_at].span();
    let before = &tokens[..fn_at];
    if before.iter().any(|token| is_ident(token, "extern")) {
        return Err((fn_span, "a kernel's ABI comes from #[kernel]: remove `extern`"));
    }
    if !before.iter().any(|token| is_ident(token, "unsafe")) {
        return Err((fn_span, "kernel functions must be marked as unsafe"));
    }
    match tokens.get(fn_at + 2) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis => {}
        _ => return Err((fn_span, "kernel functions may not have generic parameters")),
    }
    if is_arrow(tokens.get(fn_at + 3), tokens.get(fn_at + 4)) {
        return Err((fn_span, "kernel functions may not return a value"));
    }
    Ok(fn_at)
}

/// The function twice: as an entry of the PTX, and as written for every other target.
fn both_targets(tokens: &[TokenTree], fn_at: usize) -> TokenStream {
    let mut output = source("#[cfg(target_arch = \"nvptx64\")] #[unsafe(no_mangle)]");
    output.extend(tokens[..fn_at].iter().cloned());
    output.extend(source("extern \"ptx-kernel\""));
    output.extend(tokens[fn_at..].iter().cloned());
    output.extend(source("#[cfg(not(target_arch = \"nvptx64\"))]"));
    output.extend(tokens.iter().cloned());
    output
}

fn is_ident(token: &TokenTree, name: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident.to_string() == name)
}

fn is_arrow(first: Option<&TokenTree>, second: Option<&TokenTree>) -> bool {
    matches!((first, second), (Some(TokenTree::Punct(dash)), Some(TokenTree::Punct(angle)))
        if dash.as_char() == '-' && dash.spacing() == Spacing::Joint && angle.as_char() == '>')
}

/// Tokens of a literal in this file.
fn source(text: &'static str) -> TokenStream {
    text.parse().expect("a literal of this file lexes")
}

fn error(span: Span, message: &str) -> TokenStream {
    let call: TokenStream = source("::core::compile_error!");
    let argument = proc_macro::Literal::string(message);
    let group = proc_macro::Group::new(Delimiter::Brace, TokenTree::Literal(argument).into());
    let mut output: TokenStream = call.into_iter().collect();
    output.extend([TokenTree::Group(group)]);
    output
        .into_iter()
        .map(|mut token| {
            token.set_span(span);
            token
        })
        .collect()
}
