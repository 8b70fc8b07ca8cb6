//! Damaged PTX: it is refused with a line, or it loads and runs to an end, and nothing panics or hangs.

use std::path::Path;

use ptx_sim::{LaunchConfig, LoadError, Memory, Module, Swizzle, TensorMap, TensorType, launch};

/// A small generator: every run mutates alike.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

fn sources() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut paths = Vec::new();
    let mut folders = vec![root.join("fail"), root.join("pass"), root.join("foreign")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() { folders.push(entry) } else { paths.push(entry) }
        }
    }
    paths.retain(|p| p.extension().is_some_and(|e| e == "ptx"));
    paths.sort();
    let mut texts: Vec<String> = paths.iter().map(|p| std::fs::read_to_string(p).unwrap()).collect();
    // The first part of a compiler's output: long instructions, many registers.
    let compiled = include_str!("ptx/attention_d64.ptx");
    texts.push(compiled.lines().take(120).chain(["ret;", "}"]).collect::<Vec<_>>().join("\n"));
    texts
}

const PIECES: &[&str] = &[
    ";",
    "{",
    "}",
    "[",
    "]",
    ",",
    "@",
    "!",
    "|",
    "<",
    ">",
    "(",
    ")",
    ":",
    "%r1",
    "%rd1",
    "%p1",
    "-1",
    "0",
    "4294967295",
    "0x7fffffffffffffff",
    "99999999999999999999",
    "0f7f800000",
    "0dfff8000000000000",
    ".reg .b32 %q<1000000>;",
    "ret",
    "bra",
    ".local .align 8 .b8 big[400000];",
    "/*",
    "\"",
    ".loc 1 1 1",
    "\u{e9}",
    "bar.sync 0;",
    "trap;",
    "v4",
    ".f16x2",
];

fn mutate(text: &str, random: &mut Random) -> String {
    let mut words: Vec<&str> = text.split_inclusive([' ', '\n', ',', '.', ';']).collect();
    for _ in 0..=random.below(3) {
        if words.is_empty() {
            break;
        }
        let (at, other) = (random.below(words.len()), random.below(words.len()));
        match random.below(6) {
            0 => drop(words.remove(at)),
            1 => words.swap(at, other),
            2 => words[at] = words[other],
            3 => words.insert(at, PIECES[random.below(PIECES.len())]),
            4 => words[at] = PIECES[random.below(PIECES.len())],
            _ => words.truncate(at),
        }
    }
    words.concat()
}

#[test]
fn damaged_text_is_refused_or_runs_to_an_end() {
    let rounds: usize = std::env::var("PTX_SIM_FUZZ_ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(60);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut refused, mut ran) = (0, 0);
    for round in 0..rounds {
        for source in sources() {
            let text = mutate(&source, &mut random);
            let module = match Module::parse(&text) {
                Ok(module) => module,
                Err(_) => {
                    refused += 1;
                    continue;
                }
            };
            let names: Vec<String> = module.entries().map(str::to_owned).collect();
            for name in names {
                let mut memory = Memory::new();
                let mut params = vec![0; module.entry(&name).unwrap().param_bytes()];
                for param in params.chunks_mut(8).filter(|p| p.len() == 8) {
                    let address = memory.alloc(1024);
                    memory.write(address, &[1; 1024]).unwrap();
                    if random.below(2) == 0 {
                        // Where a program takes it for a tensor map, it is one.
                        let (dims, boxes) = ([64, 8], [64, 1 + random.below(8) as u64]);
                        let map =
                            TensorMap::new(TensorType::F16, address, &dims, &[128], &boxes, Swizzle::B128);
                        memory.write(address, &map.unwrap().to_bytes()).unwrap();
                    }
                    param.copy_from_slice(&address.to_le_bytes());
                }
                let mut config = LaunchConfig::new([2, 1, 1], [[64, 128][round / 2 % 2], 1, 1]);
                config.instruction_budget = 5000;
                config.dynamic_smem_bytes = 1024;
                config.checks = if round % 2 == 0 { ptx_sim::Checks::ALL } else { ptx_sim::Checks::NONE };
                // Any outcome will do, as long as there is one.
                let _ = launch(&module, &name, &params, &mut memory, &config);
                ran += 1;
            }
        }
    }
    assert!(refused > 0 && ran > 0, "refused {refused}, ran {ran}");
}

#[test]
fn refusals_name_the_line_and_the_reason() {
    let body = |text: &str| {
        format!(".version 7.0\n.target sm_80\n.address_size 64\n.entry k() {{\n{text}\nret;\n}}")
    };
    let error = |text: &str| Module::parse(&body(text)).map(|_| ()).unwrap_err().to_string();
    assert_eq!(
        error("tcgen05.wait::ld.sync.aligned;"),
        "line 5: `tcgen05.wait::ld.sync.aligned` is not supported: tensor memory (tcgen05) is not simulated"
    );
    for texture in ["tex.2d.v4.f32.f32 {%a, %b}, [t, {%x, %y}];", "suld.b.1d.b32.trap {%r}, [s, {%x}];"] {
        assert!(
            error(texture).ends_with("is not supported: textures and surfaces are not simulated"),
            "{texture}"
        );
    }
    assert_eq!(
        error("fence.proxy.async;"),
        "line 5: `fence.proxy.async` needs .target sm_90, the module has `sm_80`"
    );
    assert_eq!(error("mov.u32 %r1, 0;"), "line 5: `%r1` is not declared");
    assert_eq!(
        error(".reg .b64 %a;\nmov.u32 %a, 0;"),
        "line 6: operand 1 of `mov.u32` must be a 32-bit register"
    );
    assert_eq!(error(".reg .b32 %a;\nadd.u32 %a, %a;"), "line 6: `add.u32` takes 3 operands, found 2");
    assert_eq!(error("bra nowhere;"), "line 5: `nowhere` is not declared");
    assert_eq!(error(".reg .b32 %a;\n.reg .b32 %a;"), "line 6: `%a` is declared twice");
    assert_eq!(error("mov.u32 %r1 0;"), "line 5: expected `,` or `;`, found `0`");
    // Found by fuzzing: a string, an empty one above all, where a number could stand.
    assert_eq!(error("ld.global.u32 %r1, [\"\"];"), "line 5: expected an address, found ``");
    let variable = Module::parse(".global .u32 x = \"\";").map(|_| ()).unwrap_err();
    assert_eq!(variable.to_string(), "line 1: expected a constant or a symbol, found ``");
    assert!(matches!(Module::parse(".entry k() {"), Err(LoadError::Unterminated { line: 1, .. })));
    assert_eq!(error(".reg .b32 %r<99999999>;"), "line 5: register count is 99999999, the limit is 1048576");
}
