//! Single instructions against what PTX ISA says of them, computed here in another way.

use ptx_sim::{Checks, LaunchConfig, Memory, Module, Report, SimError, launch};

/// Runs `body` in one warp and gives what it leaves in `%out` (64 bits) of every lane.
fn try_lanes(body: &str) -> Result<(Vec<u64>, Report), SimError> {
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.extern .shared .align 128 .b8 smem[];\n\
         .visible .entry k(.param .u64 p0)\n{{\n.reg .pred %p<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<32>;\n.reg .f32 %f<8>;\n\
         .reg .b64 %d<16>;\n.reg .f64 %g<8>;\n.reg .b64 %out, %to, %at;\n.reg .b32 %lane;\n\
         mov.u32 %lane, %laneid;\nmov.u64 %out, 0;\n{body}\n\
         ld.param.u64 %to, [p0];\nmul.wide.u32 %at, %lane, 8;\nadd.s64 %to, %to, %at;\nst.global.u64 [%to], %out;\nret;\n}}\n"
    );
    let module = Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut memory = Memory::new();
    let out = memory.alloc(256);
    let mut config = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
    config.dynamic_smem_bytes = 4096;
    config.checks = Checks::ALL;
    let report = launch(&module, "k", &out.to_le_bytes(), &mut memory, &config)?;
    let mut bytes = [0; 256];
    memory.read(out, &mut bytes).unwrap();
    Ok((bytes.chunks(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect(), report))
}

fn lanes(body: &str) -> Vec<u64> {
    try_lanes(body).unwrap_or_else(|e| panic!("{e}\n{body}")).0
}

/// A 32-bit result that is the same in every lane.
fn word(body: &str) -> u32 {
    let all = lanes(&format!("{body}\ncvt.u64.u32 %out, %r0;"));
    assert!(all.iter().all(|x| *x == all[0]), "{all:?}");
    all[0] as u32
}

fn float(body: &str) -> f32 {
    f32::from_bits(word(&format!("{body}\nmov.b32 %r0, %f0;")))
}

#[test]
fn integers() {
    assert_eq!(word("mov.u32 %r1, -7; div.s32 %r0, %r1, 2;") as i32, -3);
    assert_eq!(word("mov.u32 %r1, -7; rem.s32 %r0, %r1, 2;") as i32, -1);
    assert_eq!(word("mov.u32 %r1, 7; div.u32 %r0, %r1, 0;"), u32::MAX);
    assert_eq!(word("mov.u32 %r1, 0x80000001; mul.hi.s32 %r0, %r1, 4;") as i32, -2);
    assert_eq!(word("mov.u32 %r1, 0x80000001; mul.hi.u32 %r0, %r1, 4;"), 2);
    assert_eq!(word("mov.u32 %r1, 1; shl.b32 %r0, %r1, 32;"), 0);
    assert_eq!(word("mov.u32 %r1, 0x80000000; shr.s32 %r0, %r1, 40;"), u32::MAX);
    assert_eq!(word("mov.u32 %r1, 0x12345678; bfe.u32 %r0, %r1, 8, 12;"), 0x456);
    assert_eq!(word("mov.u32 %r1, 0x12345678; bfe.s32 %r0, %r1, 4, 4;"), 7);
    assert_eq!(word("mov.u32 %r1, 0x5; mov.u32 %r2, 0xffff; bfi.b32 %r0, %r1, %r2, 4, 8;"), 0xf05f);
    assert_eq!(word("mov.u32 %r1, 0x10; bfind.u32 %r0, %r1;"), 4);
    assert_eq!(word("mov.u32 %r1, 0x10; clz.b32 %r0, %r1;"), 27);
    assert_eq!(word("mov.u32 %r1, 0x70; popc.b32 %r0, %r1;"), 3);
    assert_eq!(word("mov.u32 %r1, 0x7fffffff; add.sat.s32 %r0, %r1, 1;"), 0x7fff_ffff);
    assert_eq!(word("mov.u32 %r1, -1; mov.u32 %r2, 2; mad.lo.s32 %r0, %r1, 3, %r2;") as i32, -1);
    assert_eq!(word("mov.u16 %h1, -3; mul.wide.s16 %r0, %h1, 5;") as i32, -15);
    assert_eq!(word("mov.u16 %h1, 0x8000; neg.s16 %h2, %h1; cvt.u32.u16 %r0, %h2;"), 0x8000);
}

#[test]
fn carries_make_wide_sums() {
    let body = "mov.u32 %r1, 0xffffffff; mov.u32 %r2, 1; add.cc.u32 %r3, %r1, %r2; addc.u32 %r4, %r1, 5;\n\
                mov.b64 %out, {%r3, %r4};";
    assert_eq!(lanes(body)[0], 0x0000_0005_0000_0000);
    let body = "mov.u32 %r1, 0; mov.u32 %r2, 1; sub.cc.u32 %r3, %r1, %r2; subc.u32 %r4, %r2, 0;\n\
                mov.b64 %out, {%r3, %r4};";
    assert_eq!(lanes(body)[0], 0x0000_0000_ffff_ffff);
    let body = "mov.u32 %r1, 0xffffffff; mad.lo.cc.u32 %r3, %r1, %r1, 0xffffffff; madc.hi.u32 %r4, %r1, %r1, 0;\n\
                mov.b64 %out, {%r3, %r4};";
    assert_eq!(lanes(body)[0], u64::from(u32::MAX) * u64::from(u32::MAX) + u64::from(u32::MAX));
}

#[test]
fn floats_round_flush_and_saturate() {
    assert_eq!(float("mov.f32 %f1, 0f3f800000; add.rz.f32 %f0, %f1, 0fb3000000;"), 1.0 - f32::EPSILON / 2.0);
    assert_eq!(float("mov.f32 %f1, 0f3f800000; add.rn.f32 %f0, %f1, 0fb3000000;"), 1.0);
    assert_eq!(float("mov.f32 %f1, 0f00000001; add.f32 %f0, %f1, %f1;").to_bits(), 2);
    assert_eq!(float("mov.f32 %f1, 0f00000001; add.ftz.f32 %f0, %f1, %f1;").to_bits(), 0);
    assert_eq!(float("mov.f32 %f1, 0f40400000; add.sat.f32 %f0, %f1, %f1;"), 1.0);
    assert_eq!(float("mov.f32 %f1, 0f7fc00001; add.sat.f32 %f0, %f1, %f1;"), 0.0);
    assert_eq!(float("mov.f32 %f1, 0f7f900001; add.f32 %f0, %f1, %f1;").to_bits(), 0x7fff_ffff);
    assert_eq!(float("mov.f32 %f1, 0f7fc00000; max.f32 %f0, %f1, 0fc0000000;"), -2.0);
    assert!(float("mov.f32 %f1, 0f7fc00000; max.NaN.f32 %f0, %f1, 0fc0000000;").is_nan());
    assert_eq!(float("mov.f32 %f1, 0f40800000; rsqrt.approx.f32 %f0, %f1;"), 0.5);
    assert_eq!(float("mov.f32 %f1, 0f41000000; lg2.approx.f32 %f0, %f1;"), 3.0);
    assert_eq!(float("mov.f32 %f1, 0f41000000; ex2.approx.ftz.f32 %f0, %f1;"), 256.0);
    assert_eq!(float("mov.f32 %f1, 0fc3020000; ex2.approx.f32 %f0, %f1;").to_bits(), 1 << 19);
    assert_eq!(float("mov.f32 %f1, 0fc3020000; ex2.approx.ftz.f32 %f0, %f1;"), 0.0);
}

#[test]
fn comparisons_treat_nan_by_their_suffix() {
    let pick = |compare: &str, b: &str| {
        word(&format!(
            "mov.f32 %f1, 0f3f800000; mov.f32 %f2, {b}; setp.{compare}.f32 %p1, %f1, %f2; selp.u32 %r0, 1, 0, %p1;"
        ))
    };
    let (two, nan) = ("0f40000000", "0f7fc00000");
    for (compare, with_two, with_nan) in [
        ("lt", 1, 0),
        ("ltu", 1, 1),
        ("ge", 0, 0),
        ("geu", 0, 1),
        ("eq", 0, 0),
        ("equ", 0, 1),
        ("ne", 1, 0),
        ("neu", 1, 1),
        ("num", 1, 0),
        ("nan", 0, 1),
    ] {
        assert_eq!((pick(compare, two), pick(compare, nan)), (with_two, with_nan), "{compare}");
    }
    let both = "setp.lt.and.u32 %p1|%p2, %lane, 8, %p3;";
    let body = format!(
        "setp.ge.u32 %p3, %lane, 4; {both} selp.u64 %out, 1, 0, %p1; selp.u64 %d1, 2, 0, %p2; or.b64 %out, %out, %d1;"
    );
    let want: Vec<u64> = (0..32)
        .map(|l| {
            if l < 4 {
                0
            } else if l < 8 {
                1
            } else {
                2
            }
        })
        .collect();
    assert_eq!(lanes(&body), want);
}

#[test]
fn halves_are_compared_into_one_predicate_or_two() {
    let halves = "mov.b32 %r1, 0x3c004000; mov.b32 %r2, 0x40003c00;";
    let picked =
        |setp: &str| word(&format!("{halves} {setp} selp.u32 %r0, 1, 0, %p1; @%p2 add.u32 %r0, %r0, 2;"));
    assert_eq!(picked("setp.gt.f16x2 %p1|%p2, %r1, %r2;"), 1);
    assert_eq!(picked("setp.lt.f16x2 %p1|%p2, %r1, %r2;"), 2);
    let low = |setp: &str| word(&format!("{halves} {setp} selp.u32 %r0, 1, 0, %p1;"));
    assert_eq!((low("setp.gt.f16x2 %p1, %r1, %r2;"), low("setp.lt.f16x2 %p1, %r1, %r2;")), (1, 0));
}

#[test]
fn conversions() {
    assert_eq!(word("mov.f32 %f1, 0fc0200000; cvt.rzi.s32.f32 %r0, %f1;") as i32, -2);
    assert_eq!(word("mov.f32 %f1, 0fc0200000; cvt.rmi.s32.f32 %r0, %f1;") as i32, -3);
    assert_eq!(word("mov.f32 %f1, 0f4f800000; cvt.rni.s32.f32 %r0, %f1;"), 0x7fff_ffff);
    assert_eq!(word("mov.f32 %f1, 0f7fc00000; cvt.rni.s32.f32 %r0, %f1;"), 0);
    assert_eq!(word("mov.u32 %r1, 0x1ff; cvt.s8.s32 %r2, %r1; mov.b32 %r0, %r2;"), u32::MAX);
    assert_eq!(float("mov.u32 %r1, 0x01000001; cvt.rp.f32.u32 %f0, %r1;"), 16_777_218.0);
    assert_eq!(
        word("mov.f32 %f1, 0f3f800000; mov.f32 %f2, 0fc0000000; cvt.rn.f16x2.f32 %r0, %f1, %f2;"),
        0x3c00_c000
    );
    assert_eq!(
        word("mov.f32 %f1, 0f3f800000; mov.f32 %f2, 0fc0000000; cvt.rn.bf16x2.f32 %r0, %f1, %f2;"),
        0x3f80_c000
    );
    assert_eq!(float("mov.b16 %h1, 0x0001; cvt.f32.f16 %f0, %h1;"), 2f32.powi(-24));
    // A rounding may be named where there is nothing to round.
    assert_eq!(float("mov.b16 %h1, 0xc049; cvt.rz.f32.bf16 %f0, %h1;"), -3.140_625);
    assert_eq!(float("mov.f32 %f0, -1.25e-1;"), -0.125);
    assert_eq!(float("mov.f32 %f1, 0fc0200000; cvt.rni.f32.f32 %f0, %f1;"), -2.0);
    assert_eq!(float("mov.f64 %g1, 0d3ff0000010000001; cvt.rn.f32.f64 %f0, %g1;"), 1.0 + f32::EPSILON);
    assert_eq!(lanes("mov.f32 %f1, 0fbf800000; cvt.rzi.u64.f32 %out, %f1;")[0], 0);
    assert_eq!(lanes("mov.u32 %r1, -5; cvt.s64.s32 %out, %r1;")[0] as i64, -5);
}

#[test]
fn halves_round_once() {
    // 1 + 2^-11 is half-way between two f16: to even.
    assert_eq!(
        word("mov.b32 %r1, 0x3c003c00; mov.b32 %r2, 0x10001001; add.f16x2 %r0, %r1, %r2;"),
        0x3c00_3c01
    );
    assert_eq!(word("mov.b32 %r1, 0x3c013c01; fma.rn.f16x2 %r0, %r1, %r1, 0;"), 0x3c02_3c02);
    assert_eq!(word("mov.b32 %r1, 0x3f803f81; fma.rn.bf16x2 %r0, %r1, %r1, %r1;"), 0x4000_4002);
    assert_eq!(word("mov.b32 %r1, 0x7c003c00; neg.f16x2 %r0, %r1;"), 0xfc00_bc00);
    assert_eq!(
        word("mov.b32 %r1, 0x7e003c00; mov.b32 %r2, 0x4000c000; max.f16x2 %r0, %r1, %r2;"),
        0x4000_3c00
    );
}

#[test]
fn shuffles_and_votes() {
    let all = |op: &str| lanes(&format!("{op} cvt.u64.u32 %out, %r0;"));
    let want = |f: fn(u64) -> u64| (0..32).map(f).collect::<Vec<u64>>();
    assert_eq!(all("shfl.sync.bfly.b32 %r0, %lane, 5, 31, -1;"), want(|l| l ^ 5));
    assert_eq!(all("shfl.sync.up.b32 %r0, %lane, 3, 0, -1;"), want(|l| if l >= 3 { l - 3 } else { l }));
    assert_eq!(all("shfl.sync.down.b32 %r0, %lane, 3, 31, -1;"), want(|l| if l < 29 { l + 3 } else { l }));
    assert_eq!(all("shfl.sync.idx.b32 %r0, %lane, 9, 0x181f, -1;"), want(|l| l / 8 * 8 + 1));
    assert_eq!(
        all("shfl.sync.up.b32 %r0, %lane, 1, 0x1800, -1;"),
        want(|l| if l % 8 >= 1 { l - 1 } else { l })
    );
    assert_eq!(
        all("shfl.sync.down.b32 %r1|%p1, %lane, 3, 31, -1; selp.u32 %r0, 1, 0, %p1;"),
        want(|l| (l < 29).into())
    );
    assert_eq!(all("setp.lt.u32 %p1, %lane, 5; vote.sync.ballot.b32 %r0, %p1, -1;"), [31; 32]);
    assert_eq!(
        all("setp.lt.u32 %p1, %lane, 5; vote.sync.any.pred %p2, !%p1, -1; selp.u32 %r0, 1, 0, %p2;"),
        [1; 32]
    );
    assert_eq!(all("redux.sync.max.s32 %r0, %lane, -1;"), [31; 32]);
    assert_eq!(all("shr.u32 %r1, %lane, 3; match.any.sync.b32 %r0, %r1, -1;"), want(|l| 0xff << (l / 8 * 8)));
    assert_eq!(
        all("setp.lt.u32 %p1, %lane, 9; mov.u32 %r0, 0; @%p1 activemask.b32 %r0;"),
        want(|l| if l < 9 { 511 } else { 0 })
    );
}

#[test]
fn lanes_that_part_meet_again() {
    // Nested branches, an inner return of some lanes, then a shuffle of the others.
    let body = "setp.lt.u32 %p1, %lane, 16; mov.u32 %r0, 1;\n@%p1 bra LOW;\nsetp.lt.u32 %p2, %lane, 24;\n@%p2 bra MID;\n\
                mov.u32 %r0, 3;\nbra.uni JOIN;\nMID:\nmov.u32 %r0, 2;\nbra.uni JOIN;\nLOW:\nadd.u32 %r0, %r0, 10;\nJOIN:\n\
                shfl.sync.bfly.b32 %r1, %r0, 31, 31, -1;\ncvt.u64.u32 %out, %r1;";
    let own = |l: usize| {
        if l < 16 {
            11
        } else if l < 24 {
            2
        } else {
            3
        }
    };
    let want: Vec<u64> = (0..32).map(|l| own(31 - l)).collect();
    let (got, report) = try_lanes(body).unwrap();
    assert_eq!((got, report.divergent_branches), (want, 2));
}

#[test]
fn a_loop_of_another_length_in_every_lane_ends_together() {
    let body = "mov.u32 %r0, 0; mov.u32 %r1, %lane;\nLOOP:\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 bra DONE;\n\
                add.u32 %r0, %r0, %r1;\nsub.u32 %r1, %r1, 1;\nbra LOOP;\nDONE:\nactivemask.b32 %r2;\n\
                mov.b64 %out, {%r0, %r2};";
    let want: Vec<u64> = (0..32u64).map(|l| (l * (l + 1) / 2) | (0xffff_ffff << 32)).collect();
    assert_eq!(lanes(body), want);
}

#[test]
fn a_trap_on_one_side_does_not_keep_lanes_apart() {
    let body = "setp.lt.u32 %p1, %lane, 16;\n@%p1 bra LOW;\nsetp.gt.u32 %p2, %lane, 40;\n@%p2 bra BAD;\nbra JOIN;\n\
                BAD:\ntrap;\nLOW:\nmov.u32 %r1, 1;\nJOIN:\nactivemask.b32 %r2;\ncvt.u64.u32 %out, %r2;";
    assert_eq!(lanes(body), [0xffff_ffff; 32]);
}

#[test]
fn jump_tables_send_lanes_to_their_labels() {
    let body = "and.b32 %r1, %lane, 3;\nTABLE: .branchtargets A, B, A, C;\nbrx.idx %r1, TABLE;\n\
                A:\nmov.u64 %out, 10;\nbra DONE;\nB:\nmov.u64 %out, 20;\nbra DONE;\nC:\nmov.u64 %out, 30;\nDONE:";
    assert_eq!(lanes(body)[..5], [10, 20, 10, 30, 10]);
}

#[test]
fn memory_of_every_width_and_sign() {
    let body = "mov.u32 %r1, smem; mad.lo.u32 %r1, %lane, 16, %r1;\nmov.u32 %r2, 0x8899aabb;\n\
                st.shared.v2.u32 [%r1], {%r2, %lane};\nld.shared.s8 %r3, [%r1+1];\nld.shared.u16 %r4, [%r1+2];\n\
                mov.b64 %out, {%r3, %r4};";
    assert_eq!(lanes(body)[7], 0x0000_8899_ffff_ffaa);
    let body = "mov.u32 %r1, smem; cvt.u64.u32 %d1, %r1; cvta.shared.u64 %d2, %d1; mul.wide.u32 %d3, %lane, 16;\n\
                add.s64 %d2, %d2, %d3; st.v4.u32 [%d2], {1, 2, 3, 4}; ld.v2.u64 {%d4, %d5}, [%d2]; mov.u64 %out, %d5;";
    assert_eq!(lanes(body)[3], 0x0000_0004_0000_0003);
}

#[test]
fn atomics_return_what_was_there() {
    let body = "mov.u32 %r1, smem;\nsetp.eq.u32 %p1, %lane, 0;\n@%p1 st.shared.u32 [%r1], 100;\nbar.warp.sync -1;\n\
                atom.shared.add.u32 %r2, [%r1], 2;\nbar.warp.sync -1;\nld.shared.u32 %r3, [%r1];\nmov.b64 %out, {%r2, %r3};";
    let want: Vec<u64> = (0..32u64).map(|l| (100 + 2 * l) | (164 << 32)).collect();
    assert_eq!(lanes(body), want);
    let body = "mov.u32 %r1, smem;\nsetp.eq.u32 %p1, %lane, 0;\n@%p1 st.shared.u32 [%r1], 5;\nbar.warp.sync -1;\n\
                atom.shared.cas.b32 %r2, [%r1], 5, %lane;\nbar.warp.sync -1;\nld.shared.u32 %r3, [%r1];\n\
                bar.warp.sync -1;\natom.shared.inc.u32 %r4, [%r1], 3;\nmov.b64 %out, {%r3, %r4};";
    assert_eq!(lanes(body)[..6].iter().map(|x| x >> 32).collect::<Vec<_>>(), [0, 1, 2, 3, 0, 1]);
}

#[test]
fn a_matrix_load_gives_each_lane_its_pair() {
    // Row r of the matrix holds 8r … 8r + 7 as 16-bit numbers.
    let store = "mov.u32 %r1, smem; shl.b32 %r2, %lane, 1; mul.lo.u32 %r3, %r2, 0x10001; add.u32 %r3, %r3, 0x10000;\n\
                 mad.lo.u32 %r4, %lane, 4, %r1; st.shared.u32 [%r4], %r3; bar.warp.sync -1;\n\
                 and.b32 %r5, %lane, 7; mad.lo.u32 %r6, %r5, 16, %r1;";
    let plain = lanes(&format!(
        "{store} ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r7}}, [%r6]; cvt.u64.u32 %out, %r7;"
    ));
    let (g, t) = (|l: u64| l / 4, |l: u64| l % 4);
    let want: Vec<u64> = (0..32).map(|l| (8 * g(l) + 2 * t(l)) | ((8 * g(l) + 2 * t(l) + 1) << 16)).collect();
    assert_eq!(plain, want);
    let turned = lanes(&format!(
        "{store} ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {{%r7}}, [%r6]; cvt.u64.u32 %out, %r7;"
    ));
    let want: Vec<u64> = (0..32).map(|l| (16 * t(l) + g(l)) | ((16 * t(l) + 8 + g(l)) << 16)).collect();
    assert_eq!(turned, want);
}

#[test]
fn an_mma_multiplies_by_the_identity() {
    // A is the identity of 16 × 8 (k = 8), so D = B in its upper half.
    let body = "shr.u32 %r1, %lane, 2; and.b32 %r2, %lane, 3; shl.b32 %r3, %r2, 1; mov.u32 %r4, 0;\n\
                setp.eq.u32 %p1, %r1, %r3; selp.u32 %r5, 0x3c00, 0, %p1; add.u32 %r6, %r3, 1;\n\
                setp.eq.u32 %p2, %r1, %r6; selp.u32 %r5, 0x3c000000, %r5, %p2;\n\
                cvt.rn.f32.u32 %f1, %r3; cvt.rn.f32.u32 %f2, %r6; cvt.rn.f16x2.f32 %r7, %f2, %f1;\nmov.f32 %f3, 0f00000000;\n\
                mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f4,%f5,%f6,%f7}, {%r5,%r4}, {%r7}, {%f3,%f3,%f3,%f3};\n\
                mov.b64 %out, {%f4, %f6};";
    // B(k, n) = k, so D(g, n) = g for g < 8 and 0 below.
    let want: Vec<u64> = (0..32u64).map(|l| f32::to_bits((l / 4) as f32).into()).collect();
    assert_eq!(lanes(body), want);
}

#[test]
fn barriers_reduce_predicates() {
    let body = "setp.lt.u32 %p1, %lane, 7; bar.red.popc.u32 %r0, 0, %p1; bar.red.and.pred %p2, 0, !%p1;\n\
                selp.u32 %r1, 1, 0, %p2; mov.b64 %out, {%r0, %r1};";
    assert_eq!(lanes(body), [7; 32]);
}

#[test]
fn sums_of_narrow_and_wide_numbers_are_clamped_and_magnitudes_of_three_compared() {
    let mixed = |body: &str| float(&format!("mov.b16 %h1, 0x3e00; mov.f32 %f1, 0f3E800000; {body}"));
    assert_eq!(mixed("add.rn.sat.f32.f16 %f0, %h1, %f1;"), 1.0);
    assert_eq!(mixed("neg.f32 %f1, %f1; add.rz.sat.f32.f16 %f0, %h1, %f1;"), 1.0);
    assert_eq!(mixed("mov.f32 %f1, 0f3F800000; sub.rz.sat.f32.f16 %f0, %h1, %f1;"), 0.5);
    assert_eq!(mixed("sub.sat.f32.bf16 %f0, %h1, %f1;"), 0.0);
    assert_eq!(mixed("mov.f32 %f2, 0fC0000000; fma.rn.sat.f32.f16 %f0, %h1, %h1, %f2;"), 0.25);
    let three = "mov.f32 %f1, 0fC0400000; mov.f32 %f2, 0f3F800000; mov.f32 %f3, 0f7FC00000;";
    assert_eq!(float(&format!("{three} max.abs.f32 %f0, %f2, %f1, %f2;")), 3.0);
    assert_eq!(float(&format!("{three} min.abs.f32 %f0, %f1, %f3, %f1;")), 3.0);
    assert!(float(&format!("{three} max.NaN.abs.f32 %f0, %f1, %f3, %f1;")).is_nan());
}

#[test]
fn constant_memory_is_a_space_of_its_own() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.const .align 4 .u32 c[4] = {7, 8, 9, 10};\n.global .u32 g = 5;\n\
                .global .u64 pointer = generic(c);\n.visible .entry k(.param .u64 p0)\n{\n.reg .pred %p<5>;\n.reg .b32 %r<6>;\n\
                .reg .b64 %d<6>;\nld.param.u64 %d0, [p0];\nmov.u64 %d1, c;\ncvta.const.u64 %d1, %d1;\nisspacep.const %p0, %d1;\n\
                isspacep.global %p1, %d1;\nmov.u64 %d2, g;\ncvta.global.u64 %d2, %d2;\nisspacep.const %p2, %d2;\n\
                isspacep.global %p3, %d2;\nselp.b32 %r0, 1, 0, %p0;\nselp.b32 %r1, 1, 0, %p1;\nselp.b32 %r2, 1, 0, %p2;\n\
                selp.b32 %r3, 1, 0, %p3;\nst.global.v4.b32 [%d0], {%r0, %r1, %r2, %r3};\nld.global.u64 %d3, [pointer];\n\
                ld.u32 %r4, [%d3+8];\nst.global.b32 [%d0+16], %r4;\nret;\n}\n";
    let module = Module::parse(text).unwrap();
    // Below and above the addresses of constant variables.
    for first in [1 << 20, 0x7000_0000_0000] {
        let mut memory = Memory::from_address(first);
        let out = memory.alloc(32);
        launch(&module, "k", &out.to_le_bytes(), &mut memory, &LaunchConfig::new([1, 1, 1], [1, 1, 1]))
            .unwrap();
        let mut bytes = [0; 20];
        memory.read(out, &mut bytes).unwrap();
        let words: Vec<u32> = bytes.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(words, [1, 0, 0, 1, 9]);
    }
}

#[test]
fn a_call_takes_one_constant() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.func (.reg .b32 o) twice(.reg .b32 i)\n{\nadd.u32 o, i, i;\nret;\n}\n\
                .visible .entry k(.param .u64 p0)\n{\n.reg .b32 %r<2>;\n.reg .b64 %d<2>;\nld.param.u64 %d0, [p0];\n\
                call (%r0), twice, (21);\nst.global.b32 [%d0], %r0;\nret;\n}\n";
    let module = Module::parse(text).unwrap();
    let mut memory = Memory::new();
    let out = memory.alloc(4);
    launch(&module, "k", &out.to_le_bytes(), &mut memory, &LaunchConfig::new([1, 1, 1], [1, 1, 1])).unwrap();
    let mut bytes = [0; 4];
    memory.read(out, &mut bytes).unwrap();
    assert_eq!(u32::from_le_bytes(bytes), 42);
}
