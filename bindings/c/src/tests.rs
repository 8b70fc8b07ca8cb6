//! The header against the library: layouts by the C compiler, the example on both libraries, errors, threads.

use super::*;
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Output};

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// The system's C compiler with every warning an error.
fn compile(source: &Path, out: &Path, libraries: &[&str]) -> Output {
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]);
    cc.arg("-I").arg(Path::new(FOLDER).join("include")).arg(source).arg("-o").arg(out).args(libraries);
    cc.output().expect("there is a C compiler")
}

fn run(program: &Path) -> String {
    let output = Command::new(program).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_headers_structs_lie_as_the_librarys() {
    let folder = tempfile::tempdir().expect("a folder");
    let fields = "size dtype layout mask batch heads_q heads_kv seqlen_q seqlen_k head_dim scale q k v o lse seqlens_k \
                  window_left window_right softcap reserved sinks";
    let prints: String = fields
        .split_whitespace()
        .map(|field| format!("printf(\"%zu \", offsetof(ferroflash_forward_args, {field}));\n"))
        .collect();
    let source = format!(
        "#include \"ferroflash.h\"\n#include <stdio.h>\nint main(void) {{\n{prints}printf(\"%zu %zu\", \
         sizeof(ferroflash_forward_args), sizeof(ferroflash_tensor));\nreturn 0;\n}}\n"
    );
    let (file, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
    std::fs::write(&file, source).expect("written");
    let output = compile(&file, &program, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    macro_rules! offsets {
        ($($field:ident)*) => { vec![$(offset_of!(ForwardArgs, $field)),*] };
    }
    let mut expected = offsets!(size dtype layout mask batch heads_q heads_kv seqlen_q seqlen_k head_dim scale q k v o lse
        seqlens_k window_left window_right softcap reserved sinks);
    expected.extend([size_of::<ForwardArgs>(), size_of::<TensorArgs>()]);
    let found: Vec<usize> =
        run(&program).split(' ').map(|number| number.parse().expect("a number")).collect();
    assert_eq!(found, expected);
}

fn opened(kind: i32) -> *mut Device {
    let mut device = std::ptr::null_mut();
    // SAFETY: the pointer may be written.
    assert_eq!(unsafe { ferroflash_open(kind, 0, std::ptr::null(), &mut device) }, 0);
    device
}

fn last() -> String {
    // SAFETY: it ends in NUL and lives until the next call.
    unsafe { CStr::from_ptr(ferroflash_last_error()) }.to_string_lossy().into_owned()
}

/// Arguments of a call on float32 numbers: one query of head_dim 4 over two keys.
fn args(numbers: &mut [f32; 24]) -> ForwardArgs {
    let at = |index: usize| TensorArgs { data: numbers[index..].as_ptr() as usize, ..TensorArgs::default() };
    ForwardArgs {
        size: size_of::<ForwardArgs>(),
        dtype: 2,
        batch: 1,
        heads_q: 1,
        heads_kv: 1,
        seqlen_q: 1,
        seqlen_k: 2,
        head_dim: 4,
        q: at(0),
        k: at(4),
        v: at(12),
        o: at(20),
        ..ForwardArgs::default()
    }
}

fn forward(device: *mut Device, args: &ForwardArgs) -> i32 {
    // SAFETY: the device is open or null, and the arguments describe an array that lives or are refused.
    unsafe { ferroflash_forward(device, args, std::ptr::null_mut()) }
}

#[test]
fn what_is_wrong_has_a_code_and_words() {
    let mut numbers = [1.0; 24];
    let (device, good) = (opened(CPU), args(&mut numbers));
    assert_eq!(forward(device, &good), 0, "{}", last());
    for (bad, code, word) in [
        (ForwardArgs { size: 0, ..good }, 1, "size is 0"),
        (ForwardArgs { size: 8, ..good }, 1, "size is 8"),
        (ForwardArgs { dtype: 9, ..good }, 1, "dtype is 9"),
        (ForwardArgs { layout: -1, ..good }, 1, "layout is -1"),
        (ForwardArgs { mask: 3, ..good }, 1, "mask is 3"),
        (ForwardArgs { mask: 2, window_left: -2, ..good }, 1, "window_left is -2"),
        (ForwardArgs { reserved: 1, ..good }, 1, "reserved is 1"),
        (ForwardArgs { seqlen_q: 0, ..good }, 1, "seqlen_q is 0"),
        (ForwardArgs { scale: f32::NAN, ..good }, 1, "scale NaN"),
        (ForwardArgs { v: TensorArgs::default(), ..good }, 1, "V is null"),
    ] {
        assert_eq!(forward(device, &bad), code, "{word}");
        assert!(last().contains(word), "{word}: {}", last());
    }
    assert_eq!(forward(std::ptr::null_mut(), &good), 1);
    assert_eq!(last(), "device is NULL");
    // SAFETY: null is refused.
    assert_eq!(unsafe { ferroflash_forward(device, std::ptr::null(), std::ptr::null_mut()) }, 1);
    // SAFETY: the pointer may be written, and memory is not looked at.
    unsafe {
        let mut none = std::ptr::null_mut();
        assert_eq!(ferroflash_open(7, 0, std::ptr::null(), &mut none), 1);
        assert!(none.is_null() && last().contains("kind is 7"));
        assert_eq!(ferroflash_give_workspace(device, std::ptr::null_mut(), std::ptr::null_mut(), 0), 1);
        ferroflash_close(device);
        ferroflash_close(none);
    }
}

#[test]
fn a_newer_callers_struct_is_taken_where_it_uses_nothing_new() {
    #[repr(C)]
    struct Newer {
        args: ForwardArgs,
        added: u64,
    }
    let mut numbers = [1.0; 24];
    let device = opened(CPU);
    for (added, code) in [(0, 0), (5, 2)] {
        let args = ForwardArgs { size: size_of::<Newer>(), ..args(&mut numbers) };
        let newer = Newer { args, added };
        assert_eq!(forward(device, &newer.args), code);
    }
    assert!(last().contains("newer version"), "{}", last());
    // SAFETY: it is open, once.
    unsafe { ferroflash_close(device) };
}

#[test]
fn threads_share_a_device_and_have_errors_of_their_own() {
    let device = opened(CPU) as usize;
    std::thread::scope(|scope| {
        for index in 0..4u32 {
            scope.spawn(move || {
                for _ in 0..200 {
                    let mut numbers = [index as f32; 24];
                    numbers[20..].fill(f32::NAN);
                    let good = args(&mut numbers);
                    assert_eq!(forward(device as *mut Device, &good), 0);
                    assert!((numbers[20] - index as f32).abs() < 1e-5);
                    assert_eq!(
                        forward(
                            device as *mut Device,
                            &ForwardArgs { heads_q: 10 + index, heads_kv: 9, ..good }
                        ),
                        1
                    );
                    assert!(last().contains(&format!("heads_q {}", 10 + index)), "{}", last());
                }
            });
        }
    });
    // SAFETY: it is open, once.
    unsafe { ferroflash_close(device as *mut Device) };
}

#[test]
fn a_plan_is_explained_in_as_many_bytes_as_there_are() {
    let mut numbers = [1.0; 24];
    let (device, args) = (opened(CPU), args(&mut numbers));
    let mut text = [1u8; 8];
    // SAFETY: the buffer is as long as is said.
    assert_eq!(unsafe { ferroflash_explain(device, &args, text.as_mut_ptr().cast(), 8) }, 0);
    assert_eq!(&text, b"float32\0");
    // SAFETY: it is open, once.
    unsafe { ferroflash_close(device) };
}
