//! im2col copies (PTX ISA §5.5.4) against the convolution's definition, which moves the filter over the images. An H200 gave the same
//! for five of these copies: taps [0, 0], [2, 1] and [2, 2], steps of one and of two, into the next image and past the last.

use ptx_sim::{
    LaunchConfig, Limits, Memory, Module, Schedule, SimError, Swizzle, TensorMap, TensorType, launch,
};

/// One CTA: brings 16 pixels of 8 channels of 32 bits, from the pixel that the parameters say.
const COPY: &str = "
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out, .param .u32 w, .param .u32 h, .param .u32 n,
    .param .u16 offset_w, .param .u16 offset_h)
{
    .reg .pred %p<2>;
    .reg .b16 %h<4>;
    .reg .b32 %r<12>;
    .reg .b64 %d<6>;
    .shared .align 128 .b8 tile[512];
    .shared .align 8 .b64 full;
    mov.b64 %d0, map;
    cvta.param.u64 %d1, %d0;
    ld.param.u64 %d2, [out];
    ld.param.u32 %r1, [w];
    ld.param.u32 %r2, [h];
    ld.param.u32 %r3, [n];
    ld.param.u16 %h1, [offset_w];
    ld.param.u16 %h2, [offset_h];
    mov.u32 %r4, tile;
    mov.u32 %r5, full;
    mov.u32 %r6, %tid.x;
    setp.ne.u32 %p1, %r6, 0;
    @%p1 bra WAIT;
    mbarrier.init.shared::cta.b64 [%r5], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 512;
    mov.u32 %r0, 0;
    cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes
        [%r4], [%d1, {%r0, %r1, %r2, %r3}], [%r5], {%h1, %h2};
WAIT:
    bar.warp.sync -1;
LOOP:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], 0;
    @!%p1 bra LOOP;
    shl.b32 %r7, %r6, 4;
    add.u32 %r8, %r4, %r7;
    ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [%r8];
    cvt.u64.u32 %d3, %r7;
    add.u64 %d4, %d2, %d3;
    st.global.v4.b32 [%d4], {%r0, %r1, %r2, %r3};
    ret;
}";

/// Channels, pixels and images.
const C: u64 = 8;
const W: u64 = 6;
const H: u64 = 5;
const N: u64 = 2;

/// What the copy brings for a pixel in the filter's domain and the offset of a tap.
fn copied(map: &TensorMap, memory: &mut Memory, (w, h, n): (i32, i32, i32), taps: [u16; 2]) -> Vec<u32> {
    let module = Module::parse(COPY).unwrap();
    let out = memory.alloc(512);
    let mut params = map.to_bytes().to_vec();
    params.extend(out.to_le_bytes());
    [w, h, n].iter().for_each(|at| params.extend(at.to_le_bytes()));
    taps.iter().for_each(|tap| params.extend(tap.to_le_bytes()));
    let mut config = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
    (config.limits, config.schedule) = (Limits::SM_90, Schedule::Seeded(w as u64 & 3));
    launch(&module, "k", &params, memory, &config).unwrap();
    let mut bytes = [0; 512];
    memory.read(out, &mut bytes).unwrap();
    bytes.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Numbers C, W, H, N apart, none of them zero.
fn images(memory: &mut Memory) -> u64 {
    let numbers: Vec<u8> = (1..=(C * W * H * N) as u32).flat_map(u32::to_le_bytes).collect();
    let address = memory.alloc(numbers.len());
    memory.write(address, &numbers).unwrap();
    address
}

fn map(address: u64, lower: [i16; 2], upper: [i16; 2], swizzle: Swizzle) -> TensorMap {
    let strides = [4 * C, 4 * C * W, 4 * C * W * H];
    let sizes = (&[C, W, H, N][..], &strides[..]);
    TensorMap::im2col(TensorType::U32, address, sizes, (&lower, &upper), [C, 16], swizzle).unwrap()
}

/// The 16 outputs from number `first` on of a convolution with a pad of 1 and steps: what tap (s, r) of the filter sees.
fn expected(first: usize, taps: [u16; 2], (outputs_w, outputs_h, step): (u64, u64, i64)) -> Vec<u32> {
    let all = (0..N).flat_map(|n| (0..outputs_h).flat_map(move |q| (0..outputs_w).map(move |p| (n, q, p))));
    let pixels = all.chain(std::iter::repeat_n((N, 0, 0), 16)).skip(first).take(16);
    pixels
        .flat_map(|(n, q, p)| {
            let (w, h) = (p as i64 * step - 1 + i64::from(taps[0]), q as i64 * step - 1 + i64::from(taps[1]));
            let inside = n < N && (0..W as i64).contains(&w) && (0..H as i64).contains(&h);
            let at = C as i64 * (w + W as i64 * (h + (H * n) as i64));
            (0..C).map(move |c| if inside { at as u32 + c as u32 + 1 } else { 0 })
        })
        .collect()
}

#[test]
fn every_tap_of_a_padded_convolution_sees_its_pixels() {
    let mut memory = Memory::new();
    let address = images(&mut memory);
    let map = map(address, [-1, -1], [-1, -1], Swizzle::None);
    for taps in [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [0, 2], [2, 2]] {
        for first in [0usize, 3, 17, 29, 30, 44, 59] {
            let (p, q, n) = (first as u64 % W, first as u64 / W % H, first as u64 / (W * H));
            let at = (p as i32 - 1, q as i32 - 1, n as i32);
            assert_eq!(
                copied(&map, &mut memory, at, taps),
                expected(first, taps, (W, H, 1)),
                "{first} {taps:?}"
            );
        }
    }
}

#[test]
fn a_convolution_of_every_second_pixel_and_a_swizzle() {
    let mut memory = Memory::new();
    let address = images(&mut memory);
    let map = map(address, [-1, -1], [-1, -1], Swizzle::B32).with_element_strides(&[1, 2, 2, 1]).unwrap();
    let swizzled = |plain: Vec<u32>| -> Vec<u32> {
        (0..128).map(|at| plain[Swizzle::B32.apply(4 * at as u64) as usize / 4]).collect()
    };
    for taps in [[0, 0], [2, 1]] {
        assert_eq!(copied(&map, &mut memory, (-1, -1, 0), taps), swizzled(expected(0, taps, (3, 3, 2))));
        assert_eq!(copied(&map, &mut memory, (1, 3, 0), taps), swizzled(expected(7, taps, (3, 3, 2))));
    }
}

#[test]
fn a_map_of_a_tile_is_no_map_for_im2col() {
    let mut memory = Memory::new();
    let address = images(&mut memory);
    let strides = [4 * C, 4 * C * W, 4 * C * W * H];
    let tile =
        TensorMap::new(TensorType::U32, address, &[C, W, H, N], &strides, &[C, 4, 4, 1], Swizzle::None);
    let out = memory.alloc(512);
    let mut params = tile.unwrap().to_bytes().to_vec();
    params.extend(out.to_le_bytes());
    params.extend([0; 16]);
    let module = Module::parse(COPY).unwrap();
    let mut config = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
    config.limits = Limits::SM_90;
    let Err(SimError::Finding(finding)) = launch(&module, "k", &params, &mut memory, &config) else {
        panic!()
    };
    assert_eq!(finding.kind.name(), "bad-operand");
    assert!(finding.to_string().contains("other mode"), "{finding}");
}
