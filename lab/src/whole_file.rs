//! Reads a file whole, and writes one whole or not at all.

use std::io::{self, Read, Write};
use std::path::Path;

/// What a file may be long at most: a session of a day is a tenth of it.
const BYTES_MAX: u64 = 256 << 20;

/// The text of a file that somebody named; one without an end is refused by its size.
///
/// # Errors
/// Where it cannot be read, is no text, or is longer than any that is meant.
pub fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BYTES_MAX {
        let reason = format!("it has no end, or one behind {BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(text)
}

/// Writes `text` beside `path`, then renames it: whoever reads `path` sees the old file or the new one, and a full disk leaves
/// the old one.
///
/// # Errors
/// Where the folder cannot be written to.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().permissions(readable()).tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// What a new file's mode usually is, before the user's mask: a temporary file's would be its owner's alone.
fn readable() -> std::fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    std::fs::Permissions::from_mode(0o666)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        write(&path, "old").expect("written");
        write(&path, "new").expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "new");
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1);
        assert!(write(&folder.path().join("none/file"), "").is_err());
        assert_eq!(read(&path).expect("read"), "new");
        assert_eq!(read(Path::new("/dev/zero")).expect_err("endless").kind(), io::ErrorKind::FileTooLarge);
    }
}
