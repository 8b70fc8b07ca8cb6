//! Launches that are refused before they start, module variables, and calls.

use ptx_sim::{
    Checks, FindingKind, LaunchConfig, Limits, Memory, Module, SimError, Swizzle, TensorMap, TensorType,
    launch,
};

const COPY: &str = "
.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 128 .b8 dynamic[];
.shared .align 16 .b8 tile[1000];
.visible .entry copy(.param .u64 p0, .param .u32 p1) .maxntid 64, 1, 1
{
.reg .b32 %r<4>;
.reg .b64 %d<4>;
mov.u32 %r1, tile;
mov.u32 %r2, dynamic;
sub.u32 %r3, %r2, %r1;
ld.param.u64 %d1, [p0];
st.global.u32 [%d1], %r3;
ret;
}";

fn try_copy(params: &[u8], change: impl FnOnce(&mut LaunchConfig)) -> Result<u32, SimError> {
    let module = Module::parse(COPY).unwrap();
    let mut memory = Memory::new();
    let out = memory.alloc(4);
    let mut block = out.to_le_bytes().to_vec();
    block.extend(params);
    let mut config = LaunchConfig::new([1, 1, 1], [1, 1, 1]);
    change(&mut config);
    let entry = if params.is_empty() { "absent" } else { "copy" };
    launch(&module, entry, &block, &mut memory, &config)?;
    let mut bytes = [0; 4];
    memory.read(out, &mut bytes).unwrap();
    Ok(u32::from_le_bytes(bytes))
}

#[test]
fn dynamic_shared_memory_follows_the_static_at_its_alignment() {
    assert_eq!(try_copy(&[0; 4], |_| {}).unwrap(), 1024);
}

#[test]
fn wrong_launches_say_what_and_how_much() {
    let error =
        |params: &[u8], change: fn(&mut LaunchConfig)| try_copy(params, change).unwrap_err().to_string();
    assert_eq!(error(&[], |_| {}), "the module has no entry `absent`");
    assert_eq!(error(&[0; 8], |_| {}), "entry `copy` takes 12 bytes of parameters, got 16");
    assert_eq!(error(&[0; 4], |c| c.grid[1] = 0), "grid y is 0, allowed are 1 to 65535");
    assert_eq!(error(&[0; 4], |c| c.block[0] = 65), "threads of a CTA is 65, allowed are 1 to 64");
    assert_eq!(error(&[0; 4], |c| c.ctas = Some(vec![1])), "CTA 1 is outside a grid of 1");
    let too_much = |c: &mut LaunchConfig| (c.limits, c.dynamic_smem_bytes) = (Limits::SM_89, 99 * 1024);
    assert_eq!(
        error(&[0; 4], too_much),
        "entry `copy` needs 102400 bytes of shared memory a CTA, the device has 101376"
    );
    assert!(try_copy(&[0; 4], |c| c.dynamic_smem_bytes = 100 * 1024).is_ok());
}

const CALLS: &str = "
.version 7.0
.target sm_80
.address_size 64
.func (.param .align 8 .b8 ret[16]) divide(.param .align 8 .b8 pair[16]);
.func (.param .b32 ret) twice(.param .b32 x)
{
.reg .b32 %r<2>;
ld.param.b32 %r0, [x];
shl.b32 %r1, %r0, 1;
st.param.b32 [ret], %r1;
ret;
}
.func (.param .b32 ret) thrice(.param .b32 x)
{
.reg .b32 %r<2>;
.reg .pred %p;
ld.param.b32 %r0, [x];
setp.gt.u32 %p, %r0, 20;
mul.lo.u32 %r1, %r0, 3;
st.param.b32 [ret], %r1;
@%p ret;
add.u32 %r1, %r1, 1000;
st.param.b32 [ret], %r1;
ret;
}
.global .align 8 .u64 table[2] = {twice, thrice};
.global .align 4 .u32 counter = 40;
.const .align 4 .b32 offsets[2] = {5, 6};
.visible .entry calls(.param .u64 out, .param .u32 which)
{
.reg .b32 %r<8>;
.reg .b64 %d<8>;
.reg .pred %p;
mov.u32 %r0, %tid.x;
ld.param.u32 %r1, [which];
mul.wide.u32 %d0, %r1, 8;
mov.u64 %d1, table;
add.s64 %d1, %d1, %d0;
ld.global.u64 %d2, [%d1];
{ // callseq 0
.param .b32 param0;
.param .b32 retval0;
st.param.b32 [param0], %r0;
prototype_0 : .callprototype (.param .b32 _) _ (.param .b32 _);
call (retval0), %d2, (param0), prototype_0;
ld.param.b32 %r2, [retval0];
}
ld.const.u32 %r3, [offsets+4];
add.u32 %r2, %r2, %r3;
ld.param.u64 %d3, [out];
mul.wide.u32 %d4, %r0, 4;
add.s64 %d3, %d3, %d4;
st.global.u32 [%d3], %r2;
setp.eq.u32 %p, %r0, 0;
@%p ld.global.u32 %r4, [counter];
@%p add.u32 %r4, %r4, 1;
@%p st.global.u32 [counter], %r4;
@%p st.global.u32 [%d3], %r4;
exit;
}";

#[test]
fn functions_are_called_through_a_table_and_variables_live_on() {
    let module = Module::parse(CALLS).unwrap();
    let mut memory = Memory::new();
    let out = memory.alloc(128);
    let mut run = |which: u32| -> Result<Vec<u32>, SimError> {
        let mut params = out.to_le_bytes().to_vec();
        params.extend(which.to_le_bytes());
        launch(&module, "calls", &params, &mut memory, &LaunchConfig::new([1, 1, 1], [32, 1, 1]))?;
        let mut bytes = [0; 128];
        memory.read(out, &mut bytes).unwrap();
        Ok(bytes.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect())
    };
    let doubled = run(0).unwrap();
    assert_eq!((doubled[0], doubled[3], doubled[31]), (41, 12, 68));
    // Lanes above 20 return early; the counter is that of the launch before.
    let tripled = run(1).unwrap();
    assert_eq!((tripled[0], tripled[3], tripled[20], tripled[21]), (42, 1015, 1066, 69));
    assert_eq!(run(2).unwrap_err().finding().unwrap().kind, FindingKind::OutOfBounds);
}

/// As ptxas lays them out: decimal numbers in the variable's type, rows of nested braces one after the other.
#[test]
fn variables_begin_as_their_initialisers_say() {
    const TEXT: &str = "
.version 8.0
.target sm_80
.address_size 64
.global .align 16 .f32 single[4] = {1.5, 0f3f800000, -2.0e+1, 1e-3};
.global .align 16 .f64 double[2] = {1.5, -2.E1};
.global .align 8 .u32 rows[2][3] = {{1}, {4, 1+2*3}};
.visible .entry k(.param .u64 out)
{
.reg .b32 %r<8>;
.reg .b64 %d<8>;
ld.param.u64 %d0, [out];
ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [single];
st.global.v4.u32 [%d0], {%r0, %r1, %r2, %r3};
ld.global.v2.u64 {%d1, %d2}, [double];
st.global.v2.u64 [%d0+16], {%d1, %d2};
ld.global.v2.u32 {%r0, %r1}, [rows];
ld.global.v2.u32 {%r2, %r3}, [rows+8];
st.global.v4.u32 [%d0+32], {%r0, %r1, %r2, %r3};
ret;
}";
    let module = Module::parse(TEXT).unwrap();
    let mut memory = Memory::new();
    let out = memory.alloc(48);
    launch(&module, "k", &out.to_le_bytes(), &mut memory, &LaunchConfig::new([1, 1, 1], [1, 1, 1])).unwrap();
    let mut bytes = [0; 48];
    memory.read(out, &mut bytes).unwrap();
    let words: Vec<u32> = bytes.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
    assert_eq!(words[..4], [1.5f32, 1.0, -20.0, 1e-3].map(f32::to_bits));
    let double = |at: usize| f64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!((double(16), double(24)), (1.5, -20.0));
    assert_eq!(words[8..], [1, 4, 7, 0]);
}

#[test]
fn an_access_out_of_bounds_reads_zero_where_that_is_not_checked() {
    let module = Module::parse(CALLS).unwrap();
    let mut memory = Memory::new();
    let mut params = 64u64.to_le_bytes().to_vec();
    params.extend(0u32.to_le_bytes());
    let mut config = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
    let checked = launch(&module, "calls", &params, &mut memory, &config).unwrap_err();
    let finding = checked.finding().unwrap();
    assert_eq!((finding.kind, finding.address, finding.lane), (FindingKind::OutOfBounds, Some(64), Some(0)));
    assert_eq!(finding.instruction, "st.global.u32 [%d3], %r2;");
    config.checks = Checks::NONE;
    assert!(launch(&module, "calls", &params, &mut memory, &config).is_ok());
}

const PARAMETER_MAP: &str = "
.version 8.0
.target sm_90
.address_size 64
.shared .align 128 .b8 tile[128];
.shared .align 8 .b64 bar;
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out)
{
.reg .b32 %r<8>;
.reg .b64 %d<8>;
.reg .pred %p<2>;
mov.b64 %d0, map;
cvta.param.u64 %d1, %d0;
ld.param.u64 %d2, [out];
mbarrier.init.shared::cta.b64 [bar], 1;
fence.proxy.async;
mbarrier.arrive.expect_tx.shared::cta.b64 %d3, [bar], 128;
cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes [tile], [%d1, {2}], [bar];
WAIT:
mbarrier.try_wait.shared::cta.b64 %p0, [bar], %d3;
@!%p0 bra WAIT;
ld.shared.v2.u32 {%r0, %r1}, [tile+112];
st.global.v2.u32 [%d2], {%r0, %r1};
ret;
}";

#[test]
fn a_tensor_map_may_be_a_parameter() {
    let module = Module::parse(PARAMETER_MAP).unwrap();
    let mut memory = Memory::new();
    let (tensor, out) = (memory.alloc(124), memory.alloc(8));
    let words: Vec<u8> = (0..31u32).flat_map(u32::to_le_bytes).collect();
    memory.write(tensor, &words).unwrap();
    let map = TensorMap::new(TensorType::U32, tensor, &[31], &[], &[32], Swizzle::None).unwrap();
    let mut params = map.to_bytes().to_vec();
    params.extend(out.to_le_bytes());
    let config = LaunchConfig::new([1, 1, 1], [1, 1, 1]);
    let report = launch(&module, "k", &params, &mut memory, &config).unwrap_or_else(|e| panic!("{e}"));
    let mut bytes = [0; 8];
    memory.read(out, &mut bytes).unwrap();
    // Word 28 of the box is element 30, the last; what follows is zero and counts as bytes.
    assert_eq!(bytes, [30, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((report.bulk_copies, report.bulk_load_bytes, report.mbarrier_waits), (1, 128, 1));
}

/// Of `nvcc -rdc=true`: one kernel needs nothing of another module.
const RELOCATABLE: &str = "
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) other (.param .b32 a);
.extern .global .align 4 .b32 counter;
.extern .const .align 4 .f32 scale;
.visible .func (.param .b32 r) own (.param .b32 a) { .reg .b32 %r<3>; ld.param.b32 %r1, [a]; add.u32 %r2, %r1, 1; st.param.b32 [r], %r2; ret; }
.visible .entry whole(.param .u64 p)
{
.reg .b32 %r<3>;
.reg .b64 %d<3>;
ld.param.u64 %d1, [p];
{
.param .b32 x;
.param .b32 y;
st.param.b32 [x], 6;
call (y), own, (x);
ld.param.b32 %r1, [y];
}
st.global.u32 [%d1], %r1;
ret;
}
.visible .entry calls(.param .u64 p) { .param .b32 x; .param .b32 y; st.param.b32 [x], 6; call (y), other, (x); ret; }
.visible .entry points() { .reg .b64 %d<2>; mov.u64 %d1, other; ret; }
.visible .entry counts() { .reg .b32 %r<2>; atom.global.add.u32 %r1, [counter], 1; ret; }
.visible .entry scales() { .reg .f32 %f<2>; ld.const.f32 %f1, [scale]; ret; }";

#[test]
fn what_only_another_module_defines_is_refused_where_it_is_used() {
    let refused: Vec<String> = Module::refusals(RELOCATABLE).iter().map(ToString::to_string).collect();
    let other = "function `other` has no body in this module, which nobody has linked to another";
    let variable = |name: &str| {
        format!(
            "variable `{name}` is `.extern`, and this module, which nobody has linked to another, does not define it"
        )
    };
    let want = [
        format!("line 24: {other}"),
        format!("line 25: {other}"),
        format!("line 26: {}", variable("counter")),
        format!("line 27: {}", variable("scale")),
    ];
    assert_eq!(refused, want);
    let module = Module::parse_entry(RELOCATABLE, "whole").unwrap();
    let mut memory = Memory::new();
    let out = memory.alloc(4);
    launch(&module, "whole", &out.to_le_bytes(), &mut memory, &LaunchConfig::new([1, 1, 1], [1, 1, 1]))
        .unwrap();
    let mut bytes = [0; 4];
    memory.read(out, &mut bytes).unwrap();
    assert_eq!(u32::from_le_bytes(bytes), 7);
    // Two modules, one after the other, are linked.
    let both = format!(
        "{RELOCATABLE}\n.visible .global .align 4 .b32 counter = 5;\n.visible .const .align 4 .f32 scale = 0f3f800000;\n\
         .visible .func (.param .b32 r) other (.param .b32 a) {{ st.param.b32 [r], 1; ret; }}"
    );
    Module::parse(&both).unwrap();
    assert!(Module::parse(&format!("{both}\n.global .b32 counter;")).is_err(), "two definitions");
}

#[test]
fn kernels_that_launch_kernels_are_refused_by_name() {
    let text = "
.version 8.0
.target sm_90
.address_size 64
.extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2 (.param .b64 a, .param .b64 b);
.visible .entry child() { ret; }
.visible .entry parent()
{
.reg .b64 %d<2>;
mov.u64 %d1, child;
.param .b64 x;
.param .b64 y;
.param .b32 z;
st.param.b64 [x], %d1;
st.param.b64 [y], 0;
call (z), __cudaCDP2LaunchDeviceV2, (x, y);
ret;
}";
    let want = [
        "line 10: `launch of child` is not supported: kernels that launch kernels are not simulated",
        "line 16: function `__cudaCDP2LaunchDeviceV2` has no body in this module, as kernels that launch kernels are not simulated",
    ];
    let refused: Vec<String> = Module::refusals(text).iter().map(ToString::to_string).collect();
    assert_eq!(refused, want);
    assert_eq!(Module::parse_entry(text, "parent").unwrap_err().to_string(), want[0]);
    Module::parse_entry(text, "child").unwrap();
}

const UNWRITTEN: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1)
{
.reg .pred %p<2>;
.reg .b32 %r<4>;
.reg .b64 %d<4>;
ld.param.u64 %d0, [p0];
ld.param.u64 %d1, [p1];
mov.u32 %r0, %tid.x;
mul.wide.u32 %d2, %r0, 4;
add.s64 %d0, %d0, %d2;
ld.global.u32 %r1, [%d0];
setp.eq.u32 %p0, %r0, 3;
shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;
add.u32 %r2, %r2, 1;
@%p0 st.global.u32 [%d1], %r2;
ret;
}";

#[test]
fn undefined_bits_are_named_by_the_lane_whose_they_are() {
    let module = Module::parse(UNWRITTEN).unwrap();
    let mut memory = Memory::new();
    let (unwritten, out) = (memory.alloc(128), memory.alloc(4));
    let params = [unwritten.to_le_bytes(), out.to_le_bytes()].concat();
    let config = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
    let Err(SimError::Finding(found)) = launch(&module, "k", &params, &mut memory, &config) else {
        panic!("the result depends on what nobody wrote");
    };
    // Lane 3 stores what the shuffle brought from lane 2.
    assert_eq!((found.kind, found.line), (FindingKind::Uninitialized, 15), "{found}");
    assert_eq!((found.lane, found.address), (Some(2), Some(unwritten + 8)), "{found}");
}

#[test]
fn a_launch_has_the_sizes_that_the_kernel_requires() {
    let text = ".version 8.0\n.target sm_90\n.address_size 64\n\
                .visible .entry k() .reqntid 32, 2 .reqnctapercluster 2\n{\nret;\n}\n";
    let module = Module::parse(text).unwrap();
    let entry = module.entry("k").unwrap();
    assert_eq!(
        (entry.block(), entry.max_threads(), entry.cluster()),
        (Some([32, 2, 1]), Some(64), Some([2, 1, 1]))
    );
    let run = |block, cluster| {
        let mut config = LaunchConfig::new([4, 1, 1], block);
        config.cluster = cluster;
        launch(&module, "k", &[], &mut Memory::new(), &config).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(run([32, 2, 1], None), Ok(()));
    assert_eq!(run([32, 2, 1], Some([2, 1, 1])), Ok(()));
    // As many threads, but not in these dimensions; fewer; clusters of another size.
    for (block, cluster) in [([64, 1, 1], None), ([32, 1, 1], None), ([32, 2, 1], Some([4, 1, 1]))] {
        assert!(run(block, cluster).unwrap_err().contains("the kernel says that they must be"));
    }
}
