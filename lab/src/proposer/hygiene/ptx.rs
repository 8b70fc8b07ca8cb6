//! What no kernel's PTX may have, whether a compiler wrote it or a patch as text.

/// Registers by which a kernel could tell who watches it, where or when it runs, and spaces whose variables outlive a launch.
const FORBIDDEN: [&str; 16] = [
    ".global",
    ".const",
    "%clock",
    "%globaltimer",
    "%smid",
    "%nsmid",
    "%warpid",
    "%nwarpid",
    "%gridid",
    "%envreg",
    "%pm",
    "%current_graph",
    "%total_smem",
    "%aggr_smem",
    "%dynamic_smem",
    "%reserved_smem",
];

/// What PTX, or a piece of it, has that no kernel may have, by the first of its words. Of `st.global` and of `.param .u64 .ptr .global`
/// neither is a variable. Compilers write comments to the end of a line only: between `/*` and `*/` stands what some who read PTX take for code, such as
/// the wait by which a launch is known to be one that may start early.
pub fn in_ptx(ptx: &str) -> Option<&'static str> {
    let mut rest = ptx;
    let mut before = "";
    loop {
        rest = rest.trim_start_matches(|c: char| !is_of_word(c) && c != '/');
        if rest.starts_with("/*") {
            return Some("/*");
        } else if let Some(comment) = rest.strip_prefix("//") {
            rest = comment.split_once('\n').map_or("", |(_, behind)| behind);
        } else if let Some(behind) = rest.strip_prefix('/') {
            rest = behind;
        } else if rest.is_empty() {
            return None;
        } else {
            let (word, behind) = rest.split_at(rest.find(|c| !is_of_word(c)).unwrap_or(rest.len()));
            let is = |what: &&str| match word.strip_prefix(what) {
                Some(more) if what.starts_with('.') => {
                    before != ".ptr" && (more.is_empty() || more.starts_with('.'))
                }
                more => more.is_some(),
            };
            if let Some(found) = FORBIDDEN.iter().find(|what| is(what)) {
                return Some(found);
            }
            // The system's functions have memory of their own.
            if (before, word) == (".extern", ".func") {
                return Some(".extern .func");
            }
            (before, rest) = (word, behind);
        }
    }
}

/// The name of the first variable that PTX declares in a space, `.global` or `.const`.
pub fn variable_in_ptx<'a>(ptx: &'a str, space: &str) -> Option<&'a str> {
    let lines = ptx.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    let declared = lines.filter_map(|line| {
        let (before, rest) = line.split_once(space)?;
        let is_word = rest.starts_with(char::is_whitespace);
        let is_declaration = before
            .split_whitespace()
            .all(|word| matches!(word, ".visible" | ".extern" | ".weak" | ".common"));
        (is_word && is_declaration).then_some(rest)
    });
    // `.align 4 .b8 name[256] = {…};`
    declared
        .filter_map(|rest| {
            let end = rest.find(['[', '=', ';']).unwrap_or(rest.len());
            rest[..end].split_whitespace().next_back()
        })
        .next()
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '%' | '_' | '$')
}
