//! Cuts the PTX of one entry out of a file of many.

/// PTX of one entry: all that lies outside of entries, and that entry. The driver compiles what it is given, at 0.1 to 0.25 s
/// an entry, so a module gets the one that is needed. `None` where the entry is missing or does not end.
pub fn slice_entry(ptx: &str, entry: &str) -> Option<String> {
    let mut sliced = String::new();
    let mut found = false;
    // The entry that the line is in: whether it is the one wanted, and its braces.
    let mut inside: Option<(bool, Braces)> = None;
    for line in ptx.split_inclusive('\n') {
        if inside.is_none()
            && let Some(name) = entry_name(line)
        {
            inside = Some((name == entry, Braces::default()));
        }
        match &mut inside {
            None => sliced.push_str(line),
            Some((wanted, braces)) => {
                if *wanted {
                    sliced.push_str(line);
                }
                if braces.close_after(line) {
                    found |= *wanted;
                    inside = None;
                }
            }
        }
    }
    (found && inside.is_none()).then_some(sliced)
}

/// The name of the entry that a line begins, as in `.visible .entry name(`.
fn entry_name(line: &str) -> Option<&str> {
    let mut words =
        line.split_whitespace().skip_while(|word| matches!(*word, ".visible" | ".weak" | ".extern"));
    if words.next()? != ".entry" {
        return None;
    }
    words.next()?.split('(').next()
}

/// Open braces of a PTX body; those in comments and strings do not count.
#[derive(Default)]
struct Braces {
    depth: u32,
    opened: bool,
    in_comment: bool,
}

impl Braces {
    /// Takes one line in, and says whether the body is closed by its end.
    fn close_after(&mut self, line: &str) -> bool {
        let bytes = line.as_bytes();
        let mut in_string = false;
        let mut i = 0;
        while i < bytes.len() {
            let pair = &bytes[i..bytes.len().min(i + 2)];
            match bytes[i] {
                _ if self.in_comment => self.in_comment = pair != b"*/",
                b'"' => in_string = !in_string,
                _ if in_string => {}
                b'/' if pair == b"//" => break,
                b'/' if pair == b"/*" => self.in_comment = true,
                b'{' => {
                    self.depth += 1;
                    self.opened = true;
                }
                b'}' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            i += 1;
        }
        self.opened && self.depth == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = r#".version 7.8
.target sm_80
.address_size 64
.extern .shared .align 128 .b8 dyn_smem[];
	// .globl	first
.visible .entry first(
	.param .align 8 .b8 first_param_0[184]
)
.maxntid 128, 1, 1
{
	// begin inline asm }
	{ .reg .b32 t; mov.u32 t, 1; }
	mma.sync {%f1, %f2}, {%r1}; /* { */
	ret;
}
	// -- End function
.func helper() { ret; }
.visible .entry second(.param .u64 p)
{
	.loc 1 2 3, "a{b"
	ret;
}
.entry third() { ret; }
.file 1 "x"
"#;

    #[test]
    fn a_slice_is_all_but_the_other_entries() {
        let first = slice_entry(PTX, "first").expect("there");
        assert!(first.starts_with(".version 7.8\n.target sm_80"));
        assert!(first.contains("first_param_0") && first.contains(".maxntid") && first.contains("%f2}"));
        assert!(
            first.contains("dyn_smem")
                && first.contains(".func helper")
                && first.ends_with(".file 1 \"x\"\n")
        );
        assert!(!first.contains("second") && !first.contains("third"));
        let second = slice_entry(PTX, "second").expect("there");
        assert!(second.contains("a{b") && !second.contains("maxntid") && !second.contains("third"));
        assert_eq!(slice_entry(PTX, "third").expect("there").matches("ret;").count(), 2);
        assert_eq!(slice_entry(PTX, "fir"), None);
        let cut = &PTX[..PTX.find("%f2}").expect("there")];
        assert_eq!(slice_entry(cut, "first"), None, "an entry that does not end");
    }
}
