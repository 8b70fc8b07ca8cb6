//! The PTX of a family, taken apart at its entries: the driver compiles what it is given, at 0.1 to 0.25 s an entry, so a module gets
//! the one that is needed.

use memchr::memmem;
use memchr::{memchr, memchr3};
use std::borrow::Cow;
#[cfg(feature = "pack")]
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;

/// A line of a skeleton in whose place an entry stood.
const MARK: &str = "//entry ";

/// What kernels on older devices, too, have as comments: the instructions of sm_90 by which kernels of a stream overlap, and no others.
const SM_90_COMMENTS: [&str; 2] =
    ["// sm_90: griddepcontrol.launch_dependents;\n", "// sm_90: griddepcontrol.wait;\n"];
/// The first PTX version that has them.
const SM_90_VERSION: &str = "7.8";

/// PTX as a device of compute capability `sm` loads it (90 for 9.0): where kernels that run on older devices, too, have comments for
/// instructions of sm_90, a device that has these gets them.
pub fn for_sm(ptx: &str, sm: u32) -> Cow<'_, str> {
    if sm < 90 || memmem::find(ptx.as_bytes(), b"// sm_90: ").is_none() {
        return Cow::Borrowed(ptx);
    }
    let mut text = ptx.to_owned();
    for comment in SM_90_COMMENTS {
        text = text.replace(comment, comment.trim_start_matches("// sm_90: "));
    }
    let header = text.find(".entry").unwrap_or(text.len());
    let mut lines: Vec<String> = text[..header].split_inclusive('\n').map(str::to_owned).collect();
    for line in &mut lines {
        if let Some(version) = line.strip_prefix(".version ") {
            if version_of(version) < version_of(SM_90_VERSION) {
                *line = format!(".version {SM_90_VERSION}\n");
            }
        } else if line.starts_with(".target ") {
            *line = line.replace("sm_80", "sm_90");
        }
    }
    Cow::Owned(lines.concat() + &text[header..])
}

/// The two numbers of a version, 7 and 8 of `7.8`.
fn version_of(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Where the parts of a family's PTX are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// All that lies outside of entries, with a mark where each was.
    pub skeleton: String,
    /// Each entry's name and the bytes of its text, in order.
    pub entries: Vec<(String, Range<usize>)>,
}

impl Parts {
    /// PTX of one entry: all that lies outside of entries, and that entry's text in `ptx`, which these are the parts of. `None` where
    /// there is no such entry.
    pub fn slice(&self, ptx: &str, entry: &str) -> Option<String> {
        let (_, at) = self.entries.iter().find(|(name, _)| name == entry)?;
        let text = |name: &str| Ok::<_, Infallible>((name == entry).then(|| &ptx[at.clone()]));
        join(&self.skeleton, text).ok()
    }
}

/// Takes a family's PTX apart. `None` where an entry does not end, or a line looks like a mark.
pub fn split(ptx: &str) -> Option<Parts> {
    let mut parts = Parts { skeleton: String::new(), entries: Vec::new() };
    // The entry that the line is in: its name, where it begins and its braces.
    let mut inside: Option<(&str, usize, Braces)> = None;
    let (mut start, bytes) = (0, ptx.as_bytes());
    while start < ptx.len() {
        let end = memchr(b'\n', &bytes[start..]).map_or(ptx.len(), |length| start + length + 1);
        let line = &ptx[start..end];
        if inside.is_none()
            && let Some(name) = entry_name(line)
        {
            inside = Some((name, start, Braces::default()));
        }
        match &mut inside {
            None if line.starts_with(MARK) => return None,
            None => parts.skeleton.push_str(line),
            Some((name, begin, braces)) => {
                if braces.close_after(line) {
                    parts.skeleton.push_str(&format!("{MARK}{name}\n"));
                    parts.entries.push(((*name).to_owned(), *begin..end));
                    inside = None;
                }
            }
        }
        start = end;
    }
    inside.is_none().then_some(parts)
}

/// A skeleton with the text of some of its entries in their places, `None` for those that are left out.
///
/// # Errors
/// The first error of `entry`.
pub fn join<T: AsRef<str>, E>(
    skeleton: &str,
    mut entry: impl FnMut(&str) -> Result<Option<T>, E>,
) -> Result<String, E> {
    let mut ptx = String::new();
    for line in skeleton.split_inclusive('\n') {
        match line.strip_prefix(MARK) {
            Some(name) => ptx.push_str(entry(name.trim_end())?.as_ref().map_or("", AsRef::as_ref)),
            None => ptx.push_str(line),
        }
    }
    Ok(ptx)
}

/// The file of an archive that holds an entry of the PTX file `ptx`; what entries share is under the name of that file itself.
pub fn part_name(ptx: &str, entry: &str) -> String {
    format!("{ptx}/{entry}")
}

#[cfg(feature = "pack")]
/// A family's PTX as files of an archive. `None` where it cannot be taken apart.
pub fn pack(file: &str, ptx: &str) -> Option<BTreeMap<String, Vec<u8>>> {
    let Parts { skeleton, entries } = split(ptx)?;
    let parts = entries.into_iter().map(|(entry, at)| (part_name(file, &entry), ptx.as_bytes()[at].to_vec()));
    Some(parts.chain([(file.to_owned(), skeleton.into_bytes())]).collect())
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
        // Most lines have no brace, and neither begin nor end a comment of several lines.
        if memchr3(b'{', b'}', b'*', bytes).is_none() {
            return self.opened && self.depth == 0;
        }
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

    fn slice_entry(ptx: &str, entry: &str) -> Option<String> {
        split(ptx)?.slice(ptx, entry)
    }

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

    #[test]
    fn the_parts_together_are_the_whole() {
        let Parts { skeleton, entries } = split(PTX).expect("whole");
        let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["first", "second", "third"]);
        assert!(!skeleton.contains("mma.sync") && skeleton.contains(".func helper"));
        let text =
            |wanted: &str| entries.iter().find(|(name, _)| name == wanted).map(|(_, at)| &PTX[at.clone()]);
        assert_eq!(join(&skeleton, |name| Ok::<_, ()>(text(name))).as_deref(), Ok(PTX));
        assert_eq!(join(&skeleton, |name| Err::<Option<&str>, _>(name.to_owned())), Err("first".to_owned()));
        assert_eq!(split("//entry first\n"), None);
    }

    #[test]
    fn what_older_devices_have_as_a_comment_newer_ones_run() {
        let overlapping =
            "\t// begin inline asm\n\t// sm_90: griddepcontrol.wait;\n\t// end inline asm\n\tret;\n";
        let ptx = PTX.replacen("7.8", "7.4", 1).replacen("\tret;\n", overlapping, 1);
        assert!(matches!(for_sm(&ptx, 89), Cow::Borrowed(same) if same == ptx));
        assert!(matches!(for_sm(PTX, 90), Cow::Borrowed(same) if same == PTX));
        let newer = for_sm(&ptx, 90);
        let is_in = |line: &str| newer.lines().any(|of_text| of_text.trim() == line);
        assert!(is_in(".version 7.8") && is_in(".target sm_90") && is_in("griddepcontrol.wait;"), "{newer}");
        assert_eq!(newer.lines().count(), ptx.lines().count());
        // A newer version stays, and so does any other comment.
        let other = ptx.replacen("7.4", "8.10", 1) + "// sm_90: trap;\n";
        let other = for_sm(&other, 100);
        assert!(other.contains(".version 8.10\n") && other.ends_with("// sm_90: trap;\n"));
    }
}
