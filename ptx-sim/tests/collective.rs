//! Products that CUTLASS's CollectiveBuilder makes for sm_90a: a producer of TMA with multicast, consumers of wgmma alone, in
//! ping-pong and in a cluster of two, at sizes that are no multiples of a tile.

use std::collections::HashMap;

use ptx_sim::{
    Checks, LaunchConfig, Memory, Module, Report, Schedule, SimError, Swizzle, TensorMap, TensorType, launch,
};

const PTX: &str = include_str!("foreign/collective.ptx");

/// A launch as the host would make it.
#[derive(Default)]
struct Product {
    /// M, N, K.
    size: [usize; 3],
    grid: [u32; 3],
    block: u32,
    smem_bytes: u32,
    params: Vec<u8>,
    /// Offset, operand, dimensions, strides and box of a tensor map.
    maps: Vec<(usize, char, [Vec<u64>; 3])>,
    pointers: Vec<(usize, char)>,
}

fn numbers(words: &[&str]) -> Vec<u64> {
    words.iter().map_while(|word| word.parse().ok()).collect()
}

/// The launches that `collective.txt` describes.
fn products() -> HashMap<&'static str, Product> {
    let (mut products, mut name) = (HashMap::new(), "");
    for line in include_str!("foreign/collective.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let after = |key: &str| numbers(&words[1 + words.iter().position(|word| *word == key).unwrap()..]);
        if words[0] == "kernel" {
            name = words[1];
            products.insert(
                name,
                Product {
                    size: ["m", "n", "k"].map(|key| after(key)[0] as usize),
                    grid: std::array::from_fn(|axis| after("grid")[axis] as u32),
                    block: after("block")[0] as u32,
                    smem_bytes: after("smem")[0] as u32,
                    params: vec![0; after("bytes")[0] as usize],
                    ..Product::default()
                },
            );
            continue;
        }
        let product = products.get_mut(name).unwrap();
        let (at, operand) = (words[1].parse().unwrap(), words[2].chars().next().unwrap());
        match words[0] {
            "map" => product.maps.push((at, operand, ["dims", "strides", "box"].map(after))),
            "pointer" => product.pointers.push((at, operand)),
            _ => numbers(&words[2..]).into_iter().zip((at..).step_by(4)).for_each(|(word, at)| {
                product.params[at..at + 4].copy_from_slice(&(word as u32).to_le_bytes());
            }),
        }
    }
    products
}

/// Whole numbers from −4 to 4, which f16 holds and whose sums f32 holds.
fn values(count: usize, seed: usize) -> Vec<i32> {
    (0..count).map(|i| ((i * 7 + i / 13 * seed) % 9) as i32 - 4).collect()
}

fn half(value: i32) -> [u8; 2] {
    let exponent = value.unsigned_abs().checked_ilog2().unwrap_or(0) as u16;
    let mantissa = ((value.unsigned_abs() as u16) << (10 - exponent)) & 0x3ff;
    let bits = if value == 0 { 0 } else { (exponent + 15) << 10 | mantissa };
    (bits | u16::from(value < 0) << 15).to_le_bytes()
}

/// Runs a product; how many elements of D are wrong, as NaN is where it is not written.
fn run(
    module: &Module,
    name: &str,
    product: &Product,
    schedule: Schedule,
) -> Result<(usize, Report), SimError> {
    let [m, n, k] = product.size;
    let (a, b, c) = (values(m * k, 3), values(n * k, 5), values(m * n, 2));
    let mut memory = Memory::new();
    let mut place = |bytes: Vec<u8>| {
        let address = memory.alloc(bytes.len());
        memory.write(address, &bytes).unwrap();
        address
    };
    let floats = |list: &[i32]| list.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect();
    let addresses = HashMap::from([
        ('a', place(a.iter().flat_map(|v| half(*v)).collect())),
        ('b', place(b.iter().flat_map(|v| half(*v)).collect())),
        ('c', place(floats(&c))),
        ('d', place(f32::NAN.to_le_bytes().repeat(m * n))),
    ]);
    let mut params = product.params.clone();
    for (at, operand, [dims, strides, boxes]) in &product.maps {
        let ty = if "ab".contains(*operand) { TensorType::F16 } else { TensorType::F32 };
        let map = TensorMap::new(ty, addresses[operand], dims, strides, boxes, Swizzle::B128).unwrap();
        params[*at..at + TensorMap::BYTES].copy_from_slice(&map.to_bytes());
    }
    for (at, operand) in &product.pointers {
        params[*at..at + 8].copy_from_slice(&addresses[operand].to_le_bytes());
    }
    let config = LaunchConfig {
        limits: module.limits(),
        dynamic_smem_bytes: product.smem_bytes,
        cluster: (name == "cooperative").then_some([2, 1, 1]),
        checks: Checks::ALL,
        schedule,
        instruction_budget: 200_000,
        ..LaunchConfig::new(product.grid, [product.block, 1, 1])
    };
    let report = launch(module, name, &params, &mut memory, &config)?;
    let mut bytes = vec![0; 4 * m * n];
    memory.read(addresses[&'d'], &mut bytes).unwrap();
    let right = |at: usize| {
        let (row, column) = (at / n, at % n);
        let sum: i32 = (0..k).map(|i| a[row * k + i] * b[column * k + i]).sum();
        1.5 * sum as f32 + 0.5 * c[at] as f32
    };
    let wrong = bytes.chunks_exact(4).enumerate().filter(|(at, bytes)| {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).to_bits() != right(*at).to_bits()
    });
    Ok((wrong.count(), report))
}

#[test]
fn products_of_collectives_are_right_under_every_seed() {
    let products = products();
    for name in ["plain", "pingpong", "cooperative"] {
        let module = Module::parse_entry(PTX, name).unwrap();
        for schedule in (0..6).map(Schedule::Seeded).chain([Schedule::Deterministic]) {
            match run(&module, name, &products[name], schedule) {
                Ok((wrong, report)) => {
                    assert_eq!(wrong, 0, "{name} {schedule:?}");
                    assert!(report.warnings.is_empty(), "{name} {schedule:?}: {}", report.warnings[0]);
                }
                Err(error) => panic!("{name} {schedule:?}: {error}"),
            }
        }
    }
}

/// What orders, other than mbarriers.
const DELETED: [&str; 7] = [
    "bar.sync",
    "barrier.cluster.wait",
    "cp.async.bulk.wait_group",
    "fence.proxy.async",
    "fence.mbarrier_init",
    "wgmma.fence",
    "wgmma.wait_group",
];

/// What can go in silence, each of which `collective_deletion.txt` explains.
fn explained() -> Vec<String> {
    let lines = include_str!("collective_deletion.txt").lines().filter(|line| !line.starts_with('#'));
    lines
        .flat_map(|line| {
            let (label, _) = line.split_once(": ").expect("KERNEL INSTRUCTION NUMBERS: why");
            let (what, numbers) = label.rsplit_once(' ').expect("numbers with commas");
            numbers.split(',').map(move |number| format!("{what} {number}"))
        })
        .collect()
}

#[test]
fn no_barrier_wait_or_fence_of_a_collective_can_go_and_leave_a_wrong_result_in_silence() {
    let (products, lines) = (products(), PTX.lines().collect::<Vec<_>>());
    let (mut silent, mut deleted) = (Vec::new(), 0);
    for (name, product) in &products {
        let head = lines.iter().position(|line| *line == format!(".entry {name}(")).unwrap();
        let mut count = HashMap::new();
        let body = lines[head + 1..].iter().take_while(|line| !line.starts_with(".entry")).count();
        for at in head..=head + body {
            let Some(what) = DELETED.iter().find(|what| lines[at].starts_with(**what)) else { continue };
            deleted += 1;
            let nth = count.entry(what).and_modify(|n| *n += 1).or_insert(1);
            let mut text = lines.clone();
            text[at] = "";
            let module = Module::parse_entry(&text.join("\n"), name).unwrap();
            let mut is_silent = true;
            for schedule in [Schedule::Deterministic, Schedule::Seeded(1), Schedule::Seeded(2)] {
                match run(&module, name, product, schedule) {
                    Ok((wrong, report)) if report.warnings.is_empty() => {
                        assert_eq!(wrong, 0, "{name} {what} {nth} {schedule:?}: wrong in silence");
                    }
                    _ => is_silent = false,
                }
            }
            silent.extend(is_silent.then(|| format!("{name} {what} {nth}")));
        }
    }
    silent.sort();
    let mut explained = explained();
    explained.sort();
    assert_eq!((deleted, silent), (42, explained));
}
