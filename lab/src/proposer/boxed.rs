//! A box around a proposer: namespaces of its own, in which it sees the system's programs, the paths of its own command, and a copy of
//! what it may read, and can write nothing that outlives it but its answer.
//!
//! util-linux makes the box (`unshare`, a small root file system, `pivot_root`), so nothing here needs privileges or unsafe code. The
//! network stays, as a language model's client needs it. The process that runs the program is in a second user namespace, which has
//! no rights over the mounts of the first; all processes of the box end with it, daemons too.

use super::ProgramError;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Makes the small root, goes into it, and starts the program: `$1` the empty folder that becomes the root, `$2` the folder for
/// `/task`, `$3` the number of further paths, the paths, the program and its words.
const SCRIPT: &str = r#"
set -e
root=$1; task=$2; paths=$3; shift 3
mount --make-rprivate /
mount -t tmpfs -o size=512m,mode=755 tmpfs "$root"
readable() {
    if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$(dirname "$root$2")"; : > "$root$2"; fi
    mount --rbind "$1" "$root$2"
    mount -o remount,bind,ro "$root$2"
}
for path in /usr /bin /sbin /lib /lib32 /lib64 /etc /opt /nix/store; do
    if [ -L "$path" ]; then ln -s "$(readlink "$path")" "$root$path"
    elif [ -e "$path" ]; then readable "$path" "$path"; fi
done
mkdir -p "$root/dev" "$root/proc" "$root/tmp" "$root/old"
for device in null zero full random urandom; do
    : > "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t proc proc "$root/proc"
readable "$task" /task
while [ "$paths" -gt 0 ]; do
    [ -e "$root$1" ] || readable "$1" "$1"
    paths=$((paths - 1)); shift
done
cd "$root"
pivot_root . old
umount -l /old
cd /task
exec unshare --user -- "$@"
"#;

/// What is needed beside the command.
#[derive(Clone, Debug)]
pub struct Boxed {
    /// An empty folder that becomes the box's root; nothing is written to it outside of the box.
    pub root: PathBuf,
    /// The folder of what the program may read.
    pub task: PathBuf,
    /// Further paths that it may read, absolute.
    pub paths: Vec<PathBuf>,
}

impl Boxed {
    /// The words that run a program's words in the box. Words that are paths here are seen there.
    pub fn command(&self, words: &[String]) -> Vec<String> {
        let mut paths = self.paths.clone();
        let words: Vec<String> = words
            .iter()
            .map(|word| match std::fs::canonicalize(word) {
                Ok(path) if word.contains('/') || path.is_file() => {
                    let text = path.to_string_lossy().into_owned();
                    paths.push(path);
                    text
                }
                _ => word.clone(),
            })
            .collect();
        let mut command: Vec<String> = outer().map(str::to_owned).to_vec();
        let text = |path: &Path| path.to_string_lossy().into_owned();
        command.extend(["sh", "-c", SCRIPT, "sh"].map(str::to_owned));
        command.extend([text(&self.root), text(&self.task), paths.len().to_string()]);
        command.extend(paths.iter().map(|path| text(path)));
        command.extend(words);
        command
    }
}

const fn outer() -> [&'static str; 9] {
    ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--"]
}

/// Whether this machine has boxes.
///
/// # Errors
/// [`ProgramError::NoBox`] with what the system says.
pub fn available() -> Result<(), ProgramError> {
    let [program, arguments @ ..] = outer();
    let tried = Command::new(program)
        .args(arguments)
        .args(["sh", "-c", "mount --make-rprivate / && mount -t tmpfs tmpfs /tmp && command -v pivot_root"])
        .stdin(Stdio::null())
        .output();
    let reason = match tried {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Err(ProgramError::NoBox { reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proposer::ask;
    use std::time::Duration;

    /// What a script prints in a box, or nothing where this machine has none.
    fn said(script: &str, secret: &Path) -> Option<String> {
        if let Err(error) = available() {
            eprintln!("skipped: {error}");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let [root, task] = ["root", "task"].map(|name| folder.path().join(name));
        [&root, &task].iter().for_each(|path| std::fs::create_dir(path).expect("made"));
        std::fs::write(task.join("source.rs"), "fn f() {}\n").expect("written");
        let script = script.replace("SECRET", &secret.display().to_string());
        let words = ["sh", "-c", &script].map(str::to_owned);
        let command = Boxed { root: root.clone(), task: task.clone(), paths: Vec::new() }.command(&words);
        let asked = ask(&command, "prompt", &folder.path().join("log"), Duration::from_secs(20));
        let answer = asked.expect("runs").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(std::fs::read_dir(&root).expect("there").count(), 0, "nothing is left in the root");
        let source = std::fs::read_to_string(task.join("source.rs")).expect("there");
        assert_eq!(source, "fn f() {}\n");
        Some(answer)
    }

    #[test]
    fn a_program_sees_its_task_and_nothing_of_the_users() {
        let folder = tempfile::tempdir().expect("a folder");
        let secret = folder.path().join("records.jsonl");
        std::fs::write(&secret, "the seed\n").expect("written");
        let script = "cat source.rs; cat; cat SECRET 2>/dev/null || echo unseen; ls /root /home /work 2>/dev/null; \
            echo x > SECRET 2>/dev/null || echo unwritten; echo x > source.rs 2>/dev/null || echo read-only; \
            echo x > /etc/x 2>/dev/null || echo read-only; mount -o remount,bind,rw /task 2>/dev/null || echo locked; \
            umount /task 2>/dev/null || echo locked";
        let Some(answer) = said(script, &secret) else { return };
        assert_eq!(answer, "fn f() {}\npromptunseen\nunwritten\nread-only\nread-only\nlocked\nlocked\n");
        assert_eq!(std::fs::read_to_string(&secret).expect("there"), "the seed\n");
    }

    #[test]
    fn what_a_program_starts_ends_with_it_even_where_it_leaves_its_session() {
        let folder = tempfile::tempdir().expect("a folder");
        let begun = std::time::Instant::now();
        let Some(answer) = said("setsid sleep 61 & setsid sh -c 'sleep 62' & echo answer", folder.path())
        else {
            return;
        };
        assert_eq!(answer, "answer\n");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
