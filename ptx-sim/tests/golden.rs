//! Single instructions against an NVIDIA H200 (driver 580.159): `golden/` holds each form's code, the inputs of 32 lanes,
//! the results that the hardware gave and the program that asked it. Where the ISA defines the result, every bit must
//! agree; approximations and matrix products must lie within the manual's bound and the rounding of this side.

use ptx_sim::{LaunchConfig, Memory, Module, launch};

/// How far a result may be from the hardware's.
#[derive(Clone, Copy)]
enum Bound {
    Exact,
    /// The manual promises nothing.
    Open,
    /// Units in the last place of an f32, or an absolute error where that is larger.
    Single {
        ulp: f64,
        absolute: f64,
    },
    /// Units in the last place of each 16-bit half with so many bits of fraction.
    Half {
        ulp: i32,
    },
}

fn bound(name: &str, input: f32) -> Bound {
    let single = |ulp: f64, absolute: f64| Bound::Single { ulp, absolute };
    match name.split('.').next().unwrap_or("") {
        "mma" => single(4.0, 1e-5),
        "ex2" | "tanh" if name.contains("f16") => Bound::Half { ulp: 2 },
        "sin" | "cos" if input.abs() <= std::f32::consts::PI => single(0.0, 2f64.powf(-20.4)),
        // Beyond ±π the hardware's own range reduction decides.
        "sin" | "cos" => Bound::Open,
        "lg2" => single(2.5, 2f64.powf(-21.9)),
        "tanh" => single(2f64.powf(12.1), 0.0),
        "ex2" | "rsqrt" | "div" if name.contains("approx") || name.contains("full") => single(2.5, 0.0),
        "rcp" | "sqrt" if name.contains("approx") => single(1.5, 0.0),
        _ => Bound::Exact,
    }
}

fn agrees(bound: Bound, got: u64, want: u64) -> bool {
    match bound {
        _ if got == want => true,
        Bound::Open => true,
        Bound::Exact => false,
        Bound::Single { ulp, absolute } => {
            let (g, w) = (f32::from_bits(got as u32), f32::from_bits(want as u32));
            let unit = f64::from(w.abs()).max(f64::from(f32::MIN_POSITIVE)) * f64::from(f32::EPSILON);
            g.is_nan() && w.is_nan() || (f64::from(g) - f64::from(w)).abs() <= (ulp * unit).max(absolute)
        }
        Bound::Half { ulp } => (0..4).all(|i| {
            let half = |x: u64| i32::from((x >> (16 * i)) as i16);
            (half(got) - half(want)).abs() <= ulp
        }),
    }
}

#[test]
fn every_form_agrees_with_the_hardware() {
    let head = include_str!("golden/head.ptx");
    let results = include_bytes!("golden/results.bin");
    let mut memory = Memory::new();
    let inputs = include_bytes!("golden/inputs.bin");
    let input = memory.alloc(inputs.len());
    memory.write(input, inputs).unwrap();
    let forms: Vec<&str> = include_str!("golden/forms.txt").split("==== ").skip(1).collect();
    assert_eq!(results.len(), 256 * forms.len());
    let mut wrong = Vec::new();
    for (form, wanted) in forms.iter().zip(results.chunks(256)) {
        let (name, code) = form.split_once('\n').unwrap();
        let text = format!("{head}{code}st.global.b64 [%out], %t;\nret;\n}}\n");
        let module = Module::parse(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let output = memory.alloc(256);
        let params = [input.to_le_bytes(), output.to_le_bytes()].concat();
        let config = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
        launch(&module, "k", &params, &mut memory, &config).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut got = [0; 256];
        memory.read(output, &mut got).unwrap();
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        for (lane, (got, want)) in got.chunks(8).map(number).zip(wanted.chunks(8).map(number)).enumerate() {
            // The first operand of the f32 forms.
            let input = f32::from_le_bytes(inputs[1024 + 8 * lane..][..4].try_into().unwrap());
            if !agrees(bound(name, input), got, want) {
                wrong.push(format!("{name} lane {lane}: {got:#x} instead of {want:#x}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} results differ:\n{}",
        wrong.len(),
        32 * forms.len(),
        wrong.join("\n")
    );
}
