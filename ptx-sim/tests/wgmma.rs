//! `wgmma` of every N, in both types, both majors and every swizzle, against sums in f64. The images of the tiles are laid out
//! here from the manual's canonical layouts (PTX ISA §9.7.15.5.1), element by element.

use std::fmt::Write;

use ptx_sim::{FindingKind, LaunchConfig, Memory, Module, SimError, launch};

const K: usize = 16;
const A_PLACE: u64 = 0;
const B_PLACE: u64 = 16384;
const SMEM_BYTES: usize = 49152;

/// A layout: bytes of the swizzle's span (16 for none), its code in a descriptor, and whether m or n is contiguous.
#[derive(Clone, Copy, Debug)]
struct Layout {
    span: u64,
    code: u64,
    mn_major: bool,
}

const LAYOUTS: [Layout; 8] = {
    const fn layout(span: u64, code: u64, mn_major: bool) -> Layout {
        Layout { span, code, mn_major }
    }
    [
        layout(16, 0, false),
        layout(32, 3, false),
        layout(64, 2, false),
        layout(128, 1, false),
        layout(16, 0, true),
        layout(32, 3, true),
        layout(64, 2, true),
        layout(128, 1, true),
    ]
};

impl Layout {
    /// Leading and stride byte offsets of a dense tile.
    fn offsets(self, extent: usize) -> (u64, u64) {
        let groups = extent.div_ceil(8) as u64;
        match (self.span, self.mn_major) {
            (16, _) => (128 * groups, 128),
            (span, false) => (16, 8 * span),
            // Two groups of eight k, then the next columns.
            (span, true) => (16 * span, 8 * span),
        }
    }

    fn place(self, extent: usize, mn: usize, k: usize) -> u64 {
        let (leading, stride) = self.offsets(extent);
        let (mn, k) = (mn as u64, k as u64);
        // T = 8 elements of 16 bits; (T, span / 16, m) : (1, T, leading) and (8, k) : (span, stride), in bytes.
        let linear = match (self.span, self.mn_major) {
            (16, false) => mn % 8 * 16 + mn / 8 * stride + k % 8 * 2 + k / 8 * leading,
            (16, true) => mn % 8 * 2 + mn / 8 * stride + k % 8 * 16 + k / 8 * leading,
            (span, false) => mn % 8 * span + mn / 8 * stride + k * 2,
            (span, true) => {
                let columns = span / 2;
                mn % columns * 2 + mn / columns * leading + k % 8 * span + k / 8 * stride
            }
        };
        let row = linear / 128;
        linear ^ (row % (self.span / 16)) << 4
    }

    fn descriptor(self, place: u64, extent: usize) -> u64 {
        let (leading, stride) = self.offsets(extent);
        // Shared memory starts at 1024.
        (1024 + place) >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | self.code << 62
    }
}

/// Small integers, exact in both types.
fn value(row: usize, k: usize, salt: usize) -> f64 {
    ((row * 7 + k * 13 + salt * 5 + row * k) % 9) as f64 - 4.0
}

fn bits(x: f64, bf16: bool) -> u16 {
    let single = (x as f32).to_bits();
    if bf16 {
        return (single >> 16) as u16;
    }
    let exponent = (single >> 23 & 0xff) as i32 - 112;
    if exponent <= 0 {
        0
    } else {
        (single >> 16 & 0x8000 | (exponent as u32) << 10 | single >> 13 & 0x3ff) as u16
    }
}

/// Copies the image to shared memory, multiplies, and stores register i of thread t at 128·i + t.
fn kernel(n: usize, a: Layout, b: Layout, bf16: bool, signs: [i32; 2]) -> String {
    let ty = if bf16 { "bf16" } else { "f16" };
    let registers: Vec<String> = (0..n / 2).map(|i| format!("%f{i}")).collect();
    let mut text = format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 image[];\n\
         .visible .entry k(.param .u64 from, .param .u64 to) {{\n.reg .pred %p<2>;\n.reg .b32 %r<8>;\n.reg .b64 %d<8>;\n\
         .reg .f32 %f<{}>;\nld.param.u64 %d0, [from];\nld.param.u64 %d1, [to];\nmov.u32 %r0, %tid.x;\n\
         mov.u32 %r1, image;\nshl.b32 %r2, %r0, 2;\nCOPY:\ncvt.u64.u32 %d2, %r2;\nadd.s64 %d2, %d0, %d2;\n\
         ld.global.u32 %r3, [%d2];\nadd.u32 %r4, %r1, %r2;\nst.shared.u32 [%r4], %r3;\nadd.u32 %r2, %r2, 512;\n\
         setp.lt.u32 %p0, %r2, {SMEM_BYTES};\n@%p0 bra COPY;\nfence.proxy.async;\nbar.sync 0;\n\
         mov.u64 %d3, {};\nmov.u64 %d4, {};\nwgmma.fence.sync.aligned;\n\
         wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{ty}.{ty} {{{}}}, %d3, %d4, 0, {}, {}, {}, {};\n\
         wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\nmul.wide.u32 %d5, %r0, 4;\n\
         add.s64 %d5, %d1, %d5;\n",
        n / 2,
        a.descriptor(A_PLACE, 64) as i64,
        b.descriptor(B_PLACE, n) as i64,
        registers.join(", "),
        signs[0],
        signs[1],
        u8::from(a.mn_major),
        u8::from(b.mn_major),
    );
    for (i, register) in registers.iter().enumerate() {
        writeln!(text, "st.global.f32 [%d5+{}], {register};", 512 * i).unwrap();
    }
    text + "ret;\n}\n"
}

fn check(n: usize, a: Layout, b: Layout, bf16: bool, signs: [i32; 2]) {
    check_text(&kernel(n, a, b, bf16, signs), n, a, b, bf16, signs)
        .unwrap_or_else(|e| panic!("n {n} {a:?} {b:?}: {e}"));
}

/// As [`check`], of a text of the kernel.
fn check_text(
    text: &str,
    n: usize,
    a: Layout,
    b: Layout,
    bf16: bool,
    signs: [i32; 2],
) -> Result<(), SimError> {
    let mut image = vec![0u8; SMEM_BYTES];
    let mut put = |place: u64, x: f64| {
        image[place as usize..place as usize + 2].copy_from_slice(&bits(x, bf16).to_le_bytes());
    };
    for k in 0..K {
        (0..64).for_each(|m| put(A_PLACE + a.place(64, m, k), value(m, k, 0)));
        (0..n).for_each(|column| put(B_PLACE + b.place(n, column, k), value(column, k, 1)));
    }
    let module = Module::parse(text).unwrap();
    let mut memory = Memory::new();
    let (from, to) = (memory.alloc(SMEM_BYTES), memory.alloc(64 * n * 4));
    memory.write(from, &image).unwrap();
    let params: Vec<u8> = [from, to].into_iter().flat_map(u64::to_le_bytes).collect();
    let mut config = LaunchConfig::new([1, 1, 1], [128, 1, 1]);
    config.dynamic_smem_bytes = SMEM_BYTES as u32;
    launch(&module, "k", &params, &mut memory, &config)?;
    let mut bytes = vec![0; 64 * n * 4];
    memory.read(to, &mut bytes).unwrap();
    for (at, word) in bytes.chunks_exact(4).enumerate() {
        let (i, thread) = (at / 128, at % 128);
        let (warp, lane) = (thread / 32, thread % 32);
        let row = 16 * warp + lane / 4 + 8 * (i / 2 % 2);
        let column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
        let sum: f64 = (0..K).map(|k| value(row, k, 0) * value(column, k, 1)).sum();
        let want = sum * f64::from(signs[0] * signs[1]);
        let got = f32::from_le_bytes(word.try_into().unwrap());
        assert_eq!(f64::from(got), want, "n {n} {a:?} {b:?} bf16 {bf16}, row {row} column {column}");
    }
    Ok(())
}

/// Triton takes the halves of float16 accumulators apart behind `commit_group` and puts them together again before the next product.
#[test]
fn halves_of_an_accumulator_may_be_moved_before_it_is_there_and_not_be_used() {
    let (a, commit) = (LAYOUTS[3], "wgmma.commit_group.sync.aligned;\n");
    let with = |more: &str| {
        let text = kernel(8, a, a, false, [1, 1]).replace(".reg .f32", ".reg .b16 %h<2>;\n.reg .f32");
        let text = text.replace(
            commit,
            &format!("{commit}mov.b32 {{%h0, %h1}}, %f0;\n{more}mov.b32 %f0, {{%h0, %h1}};\n"),
        );
        check_text(&text, 8, a, a, false, [1, 1])
    };
    with("").expect("moved alone");
    for used in ["add.u16 %h0, %h0, %h1;\n", "mov.b16 %h1, 0;\n"] {
        match with(used) {
            Err(SimError::Finding(found)) => assert_eq!(found.kind, FindingKind::WgmmaPending, "{used}"),
            other => panic!("{used}: {other:?}"),
        }
    }
}

#[test]
fn every_n_multiplies() {
    for n in (8..=256).step_by(8) {
        check(n, LAYOUTS[3], LAYOUTS[3], n % 16 == 0, [1, 1]);
    }
}

#[test]
fn every_layout_of_a_and_of_b_multiplies() {
    for (i, a) in LAYOUTS.into_iter().enumerate() {
        for (j, b) in LAYOUTS.into_iter().enumerate() {
            let sign = |negative: bool| if negative { -1 } else { 1 };
            check(64, a, b, (i + j) % 2 == 1, [sign(i % 2 == 1), sign(j % 3 == 1)]);
        }
    }
    // Rows or columns that do not fill the last atom.
    LAYOUTS.into_iter().for_each(|b| check(8, LAYOUTS[0], b, false, [1, 1]));
    LAYOUTS.into_iter().for_each(|b| check(72, LAYOUTS[7], b, true, [1, -1]));
}
