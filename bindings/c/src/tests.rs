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
    let mut prints = String::new();
    let mut expected = Vec::new();
    // Every field of a struct, in the header's order and in the library's.
    macro_rules! compare {
        ($name:literal $of:ident: $($field:ident)*) => {
            $(
                prints += &format!("printf(\"%zu \", offsetof({}, {}));\n", $name, stringify!($field));
                expected.push(offset_of!($of, $field));
            )*
            prints += &format!("printf(\"%zu \", sizeof({}));\n", $name);
            expected.push(size_of::<$of>());
        };
    }
    compare!("ferroflash_tensor" TensorArgs: data stride_batch stride_head stride_row);
    compare!("ferroflash_forward_args" ForwardArgs: size dtype layout mask batch heads_q heads_kv seqlen_q seqlen_k head_dim scale
        q k v o lse seqlens_k window_left window_right softcap reserved sinks cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k
        block_table table_entries page_size page_count attention_chunk alibi_slopes alibi_by_batch tree_keys tree_bits intervals bias
        bias_shared head_dim_v dropout_p reserved2 dropout_seed dropout_offset);
    compare!("ferroflash_backward_args" BackwardArgs: size forward d_o d_q d_k d_v d_lse d_sinks ds_bytes_max d_bias);
    compare!("ferroflash_append_args" AppendArgs: size dtype layout batch heads_q heads_kv seqlen_q seqlen_k head_dim tokens reserved
        new_k new_v k v q rotated_q seqlens_k seqlens_after cu_seqlens_new block_table table_entries page_size page_count rotary_dim
        rotary_cos rotary_sin rotary_positions rotary_interleaved rotary_each_query reserved2 rotary_starts);
    compare!("ferroflash_merge_args" MergeArgs: size partial_dtype dtype layout states batch heads seqlen head_dim partial_o next_o
        partial_lse next_lse o lse);
    let source =
        format!("#include \"ferroflash.h\"\n#include <stdio.h>\nint main(void) {{\n{prints}return 0;\n}}\n");
    let (file, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
    std::fs::write(&file, source).expect("written");
    let output = compile(&file, &program, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Vec<usize> =
        run(&program).split_whitespace().map(|number| number.parse().expect("a number")).collect();
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
        (ForwardArgs { reserved2: 2, ..good }, 1, "reserved is 2"),
        (ForwardArgs { dropout_p: 1.0, ..good }, 1, "dropout_p 1.0"),
        (ForwardArgs { dropout_p: f32::NAN, ..good }, 1, "dropout_p NaN"),
        (ForwardArgs { seqlen_q: 0, ..good }, 1, "seqlen_q is 0"),
        (ForwardArgs { scale: f32::NAN, ..good }, 1, "scale NaN"),
        (ForwardArgs { v: TensorArgs::default(), ..good }, 1, "V is null"),
        (ForwardArgs { page_size: 16, ..good }, 1, "block_table, and page_size is not 0, is NULL"),
        (ForwardArgs { tree_keys: 2, ..good }, 1, "tree_bits, and tree_keys is not 0, is NULL"),
        (
            ForwardArgs { seqlen_q: 2, o: TensorArgs { stride_batch: 4, ..good.o }, ..good },
            1,
            "O: stride 0 of rows",
        ),
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
fn a_callers_struct_of_the_first_version_is_taken() {
    let mut numbers = [1.0; 24];
    numbers[20..].fill(f32::NAN);
    let device = opened(CPU);
    // What lies behind the first version's fields is not the caller's, and not read.
    let first = offset_of!(ForwardArgs, cu_seqlens_q);
    let args =
        ForwardArgs { size: first, cu_seqlens_q: 1, block_table: 1, tree_bits: 1, ..args(&mut numbers) };
    assert_eq!(forward(device, &args), 0, "{}", last());
    assert_eq!(numbers[20], 1.0);
    assert_eq!(forward(device, &ForwardArgs { size: first - 1, ..args }), 1);
    // SAFETY: it is open, once.
    unsafe { ferroflash_close(device) };
}

/// A cache of two pages of three rows, one head of head_dim 2: append, attend in two parts, merge.
#[test]
fn a_cache_grows_and_parts_merge() {
    let device = opened(CPU);
    let at = |numbers: &[f32]| TensorArgs { data: numbers.as_ptr() as usize, ..TensorArgs::default() };
    let (new_k, new_v) = ([1.0f32, 0.0, 0.0, 1.0], [1.0f32, 2.0, 3.0, 4.0]);
    let (mut k, mut v) = ([0.5f32; 12], [7.0f32; 12]);
    let (table, before, mut after) = ([1i32, 0], [2u32], [0u32]);
    let append = AppendArgs {
        size: size_of::<AppendArgs>(),
        dtype: 2,
        batch: 1,
        heads_kv: 1,
        head_dim: 2,
        tokens: 2,
        new_k: at(&new_k),
        new_v: at(&new_v),
        k: TensorArgs { data: k.as_mut_ptr() as usize, ..TensorArgs::default() },
        v: TensorArgs { data: v.as_mut_ptr() as usize, ..TensorArgs::default() },
        seqlens_k: before.as_ptr() as usize,
        seqlens_after: after.as_mut_ptr() as usize,
        block_table: table.as_ptr() as usize,
        table_entries: 2,
        page_size: 3,
        page_count: 2,
        ..AppendArgs::default()
    };
    // SAFETY: every address is of an array as long as the sizes say, or the call is refused.
    let run = |append: &AppendArgs| unsafe { ferroflash_append(device, append, std::ptr::null_mut()) };
    assert_eq!(run(&append), 0, "{}", last());
    assert_eq!(after, [4]);
    // Keys 2 and 3 of the sequence: the last row of page 1, and the first of page 0.
    assert_eq!((&k[10..], &k[..2], &v[10..], &v[..2]), (&new_k[..2], &new_k[2..], &new_v[..2], &new_v[2..]));
    assert!(k[2..10].iter().all(|&number| number == 0.5));
    for (bad, code, word) in [
        (AppendArgs { size: 8, ..append }, 1, "size is 8, must be sizeof(ferroflash_append_args)"),
        (AppendArgs { page_size: 0, ..append }, 1, "seqlen_k is 0"),
        (AppendArgs { block_table: 0, ..append }, 1, "block_table, and page_size is not 0, is NULL"),
        (AppendArgs { tokens: 5, ..append }, 1, "before the new ones of sequence 0 is 2"),
        (AppendArgs { seqlens_k: 0, ..append }, 1, "cache_seqlens is null"),
        (AppendArgs { rotary_dim: 16, ..append }, 1, "rotary_cos or rotary_sin is NULL"),
        (AppendArgs { q: at(&new_k), heads_q: 1, seqlen_q: 1, ..append }, 1, "q is given without rotary_dim"),
        (AppendArgs { reserved2: 9, ..append }, 1, "reserved is 9"),
        (AppendArgs { v: append.k, ..append }, 1, "the caches of K and V are one"),
        (
            AppendArgs {
                k: TensorArgs { stride_batch: 2, stride_head: 2, stride_row: 2, ..append.k },
                ..append
            },
            1,
            "elements of the output would coincide",
        ),
    ] {
        assert_eq!(run(&bad), code, "{word}");
        assert!(last().contains(word), "{word}: {}", last());
    }
    let (q, all, first) = ([1.0f32, 0.5], [4u32], [3u32]);
    let (mut o, mut lse) = ([[f32::NAN; 2]; 3], [f32::NAN; 3]);
    let paged = |o: &mut [f32; 2], lse: &mut f32| ForwardArgs {
        size: size_of::<ForwardArgs>(),
        dtype: 2,
        batch: 1,
        heads_q: 1,
        heads_kv: 1,
        seqlen_q: 1,
        head_dim: 2,
        q: at(&q),
        k: append.k,
        v: append.v,
        o: at(o),
        lse: (lse as *mut f32) as usize,
        seqlens_k: all.as_ptr() as usize,
        block_table: table.as_ptr() as usize,
        table_entries: 2,
        page_size: 3,
        page_count: 2,
        ..ForwardArgs::default()
    };
    let whole = paged(&mut o[0], &mut lse[0]);
    assert_eq!(forward(device, &whole), 0, "{}", last());
    // Keys 0 to 2, and then key 3 alone, which is the first row of K without a table.
    let part = ForwardArgs { seqlens_k: first.as_ptr() as usize, ..paged(&mut o[1], &mut lse[1]) };
    assert_eq!(forward(device, &part), 0, "{}", last());
    let rest = ForwardArgs {
        seqlen_k: 1,
        seqlens_k: 0,
        block_table: 0,
        page_size: 0,
        ..paged(&mut o[2], &mut lse[2])
    };
    assert_eq!(forward(device, &rest), 0, "{}", last());
    let (mut merged, mut merged_lse) = ([f32::NAN; 2], f32::NAN);
    let merge = MergeArgs {
        size: size_of::<MergeArgs>(),
        partial_dtype: 2,
        dtype: 2,
        states: 2,
        batch: 1,
        heads: 1,
        seqlen: 1,
        head_dim: 2,
        partial_o: at(&o[1]),
        next_o: o[2].as_ptr() as usize,
        partial_lse: lse[1..].as_ptr() as usize,
        next_lse: lse[2..].as_ptr() as usize,
        o: TensorArgs { data: merged.as_mut_ptr() as usize, ..TensorArgs::default() },
        lse: (&raw mut merged_lse) as usize,
        ..MergeArgs::default()
    };
    // SAFETY: as above.
    let run = |merge: &MergeArgs| unsafe { ferroflash_merge(device, merge, std::ptr::null_mut()) };
    assert_eq!(run(&merge), 0, "{}", last());
    assert!((0..2).all(|i| (merged[i] - o[0][i]).abs() < 1e-5), "{merged:?}, {:?} at once", o[0]);
    assert!((merged_lse - lse[0]).abs() < 1e-5, "{merged_lse}, {} at once", lse[0]);
    for (bad, code, word) in [
        (MergeArgs { states: 0, ..merge }, 1, "states is 0"),
        (MergeArgs { partial_dtype: 5, ..merge }, 1, "partial_dtype is 5"),
        (MergeArgs { next_lse: 0, ..merge }, 1, "the second state's LSE is null"),
        (MergeArgs { layout: 2, ..merge }, 1, "layout is 2"),
    ] {
        assert_eq!(run(&bad), code, "{word}");
        assert!(last().contains(word), "{word}: {}", last());
    }
    // SAFETY: it is open, once.
    unsafe { ferroflash_close(device) };
}

/// Of two keys whose weights are equal, O has those that seed and offset keep, twice as much of them at p = 1/2.
#[test]
fn dropout_leaves_out_what_seed_and_offset_say() {
    let device = opened(CPU);
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let mut numbers = [0.0f32; 24];
        // Key 0's value is the first element, key 1's the second.
        (numbers[12], numbers[17]) = (1.0, 1.0);
        let (offset, o) = (seed / 8, std::array::from_fn::<_, 2, _>(|key| numbers[20 + key..].as_ptr()));
        let args =
            ForwardArgs { dropout_p: 0.5, dropout_seed: seed, dropout_offset: offset, ..args(&mut numbers) };
        assert_eq!(forward(device, &args), 0, "{}", last());
        // SAFETY: both are in the array.
        let found = o.map(|o| unsafe { o.read_volatile() });
        let dropout = ferroflash_call::Dropout { p: 0.5, seed, offset };
        let expected = [0, 1].map(|key| if dropout.keeps(0, 0, key) { 1.0 } else { 0.0 });
        assert_eq!(found, expected, "seed {seed}");
        seen.insert(found.map(f32::to_bits));
    }
    assert_eq!(seen.len(), 4, "each key is kept and left out");
    // SAFETY: it is open, once.
    unsafe { ferroflash_close(device) };
}

/// Two queries and three keys, one head, V wider than Q: dQ, dK and dV of a loss, against differences of it, with weights left out and without.
#[test]
fn gradients_are_the_slopes_of_a_loss() {
    let device = opened(CPU);
    let at = |numbers: &[f32]| TensorArgs { data: numbers.as_ptr() as usize, ..TensorArgs::default() };
    let number = |index: usize| ((index * 37 % 17) as f32 - 8.0) / 9.0;
    // Q [2, 2], K [3, 2], V [3, 4] behind one another; a weight for each element of O in the loss.
    let inputs: Vec<f32> = (0..22).map(number).collect();
    let weights: Vec<f32> = (30..38).map(number).collect();
    let bias: Vec<f32> = (40..46).map(number).collect();
    let (mut o, mut lse, intervals) = ([0.0f32; 8], [0.0f32; 2], [0u32, 2, 0, 3]);
    let mut call = |inputs: &[f32], dropout_p: f32| {
        let args = ForwardArgs {
            size: size_of::<ForwardArgs>(),
            dtype: 2,
            batch: 1,
            heads_q: 1,
            heads_kv: 1,
            seqlen_q: 2,
            seqlen_k: 3,
            head_dim: 2,
            head_dim_v: 4,
            q: at(inputs),
            k: at(&inputs[4..]),
            v: at(&inputs[10..]),
            o: TensorArgs { data: o.as_mut_ptr() as usize, ..TensorArgs::default() },
            lse: lse.as_mut_ptr() as usize,
            intervals: intervals.as_ptr() as usize,
            dropout_p,
            dropout_seed: 3,
            ..ForwardArgs::default()
        };
        assert_eq!(forward(device, &args), 0, "{}", last());
        let loss = o.iter().zip(&weights).map(|(o, weight)| f64::from(o * weight)).sum::<f64>();
        (args, loss)
    };
    // SAFETY: every address is of an array as long as the sizes say, or the call is refused.
    let run = |args: &BackwardArgs| unsafe { ferroflash_backward(device, args, std::ptr::null_mut()) };
    let mut all = [[f32::NAN; 22]; 2];
    let of = |first: usize, gradients: &mut [f32]| at(&gradients[first..]);
    let backward_of = |args: &ForwardArgs, gradients: &mut [f32]| BackwardArgs {
        size: size_of::<BackwardArgs>(),
        forward: std::ptr::from_ref(args) as usize,
        d_o: at(&weights),
        d_q: of(0, gradients),
        d_k: of(4, gradients),
        d_v: of(10, gradients),
        ..BackwardArgs::default()
    };
    for (dropout_p, gradients) in [0.5, 0.0].into_iter().zip(&mut all) {
        let (args, _) = call(&inputs, dropout_p);
        assert_eq!(run(&backward_of(&args, gradients)), 0, "{}", last());
        for index in 0..22 {
            let [more, less] = [1e-2, -1e-2].map(|step| {
                let mut moved = inputs.clone();
                moved[index] += step;
                call(&moved, dropout_p).1
            });
            let slope = (more - less) / 2e-2;
            let found = gradients[index];
            assert!(
                (f64::from(found) - slope).abs() < 2e-3,
                "{index}, dropout {dropout_p}: {found} for {slope}"
            );
        }
    }
    assert_ne!(all[0], all[1], "some weights are left out");
    let (args, _) = call(&inputs, 0.0);
    let backward = backward_of(&args, &mut all[1]);
    // A bias moves LSE of each query by at most itself, and one that all queries share is read once.
    let (with, _) = call(&inputs, 0.0);
    let plain = lse_of(&with, device);
    for (shared, rows) in [(0, [0, 3]), (4, [0, 0])] {
        let biased = ForwardArgs { bias: bias.as_ptr() as usize, bias_shared: shared, ..with };
        let moved = lse_of(&biased, device);
        for query in 0..2 {
            let seen = &bias[rows[query]..rows[query] + 2 + query];
            let least = seen.iter().copied().fold(f32::INFINITY, f32::min);
            let most = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let by = moved[query] - plain[query];
            assert!((least..=most).contains(&by), "bias_shared {shared}: {by} of {least} to {most}");
        }
    }
    let without_lse = ForwardArgs { lse: 0, ..args };
    for (bad, code, word) in [
        (BackwardArgs { size: 8, ..backward }, 1, "size is 8, must be sizeof(ferroflash_backward_args)"),
        (BackwardArgs { forward: 0, ..backward }, 1, "args is NULL"),
        (BackwardArgs { d_k: TensorArgs::default(), ..backward }, 1, "dK is null"),
        (BackwardArgs { forward: (&raw const without_lse) as usize, ..backward }, 1, "LSE is null"),
        (BackwardArgs { d_k: TensorArgs { stride_batch: 6, ..backward.d_k }, ..backward }, 1, "dK: stride 0"),
        (BackwardArgs { d_sinks: 4096, ..backward }, 1, "sinks whose gradient is wanted is null"),
        (BackwardArgs { d_bias: 4096, ..backward }, 1, "the bias whose gradient is wanted is null"),
    ] {
        assert_eq!(run(&bad), code, "{word}");
        assert!(last().contains(word), "{word}: {}", last());
    }
    assert_eq!(forward(device, &ForwardArgs { bias_shared: 8, ..args }), 1);
    assert!(last().contains("bias_shared is 8"), "{}", last());
    let mut bytes = 1;
    // SAFETY: it may be written.
    let code =
        unsafe { ferroflash_missing_backward_workspace(device, &backward, std::ptr::null_mut(), &mut bytes) };
    assert_eq!((code, bytes), (0, 0), "the CPU needs none");
    // SAFETY: it is open, once.
    unsafe { ferroflash_close(device) };
}

fn lse_of(args: &ForwardArgs, device: *mut Device) -> [f32; 2] {
    let mut lse = [f32::NAN; 2];
    assert_eq!(forward(device, &ForwardArgs { lse: lse.as_mut_ptr() as usize, ..*args }), 0, "{}", last());
    lse
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
