//! Ctrl-C in the middle of a run.

use crate::support::{self, binary, folder, names, write_qkv};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

support::trials!(ctrl_c_leaves_nothing_and_exits_with_130);

fn ctrl_c_leaves_nothing_and_exits_with_130() {
    let folder = folder();
    // Minutes of work on a CPU.
    let shape = [1, 16, 16384, 64];
    write_qkv(folder.path(), &shape, &shape, &shape);
    let mut child = Command::new(binary())
        .args(["run", "--device", "cpu", "--input", "qkv.safetensors", "--output", "o.safetensors"])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while names(folder.path()).len() < 2 {
        assert!(Instant::now() < deadline, "the temporary file appears");
        std::thread::sleep(Duration::from_millis(10));
    }
    let interrupted = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status();
    assert!(interrupted.expect("sh runs").success());
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(130));
    assert_eq!(names(folder.path()), ["qkv.safetensors"]);
}
