//! Which lines of the source a finding names, where compilers say it in ways of their own.

use ptx_sim::{Finding, LaunchConfig, Memory, Module, SimError, launch};

fn finding(body: &str, functions: &str) -> Box<Finding> {
    let text = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.file 1 \"k.py\"\n{functions}\n\
         .visible .entry k(.param .u64 p0)\n{{\n.reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .b64 %d<4>;\n\
         .shared .align 8 .b64 full;\nld.param.u64 %d0, [p0];\n{body}\nret;\n}}\n"
    );
    let module = Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut memory = Memory::new();
    let address = memory.alloc(256);
    memory.write(address, &[0; 256]).unwrap();
    let config = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
    match launch(&module, "k", &address.to_le_bytes(), &mut memory, &config) {
        Err(SimError::Finding(finding)) => finding,
        other => panic!("{other:?}"),
    }
}

/// Triton 3.9's compiler counts source lines within an `asm` statement, though all of it comes from one line of Python.
#[test]
fn an_asm_statement_is_where_it_begins() {
    let load = "// begin inline asm\n.loc 1 166 9 // k.py:166:9\nmov.u32 %r1, 0x0;\n.loc 1 167 9\nmov.u32 %r2, 0x0;\n\
                .loc 1 168 9\nld.global.v2.b32 {%r1, %r2}, [%d0 + OFFSET];\n\n// end inline asm\n";
    let inside = load.replace("OFFSET", "256");
    let found = finding(&format!(".loc 1 166 9\n{inside}"), "");
    assert_eq!(found.source.unwrap().line, 166);
    // What follows without a line of its own is still there; a line that follows counts again.
    let before = load.replace("OFFSET", "0");
    let found = finding(&format!(".loc 1 166 9\n{before}ld.global.b32 %r3, [%d0+256];"), "");
    assert_eq!(found.source.unwrap().line, 166);
    let found = finding(&format!(".loc 1 166 9\n{before}.loc 1 170 5\nld.global.b32 %r3, [%d0+256];"), "");
    assert_eq!(found.source.unwrap().line, 170);
}

#[test]
fn who_waits_in_a_function_is_named_with_the_call() {
    let wait = ".func wait(.param .b32 bar)\n{\n.reg .pred %p<2>;\n.reg .b32 %r<2>;\n.loc 1 5 3\n\
                ld.param.b32 %r0, [bar];\nL: mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r0], 0;\n@!%p0 bra L;\nret;\n}";
    let body = ".loc 1 20 3\nmov.u32 %r0, full;\nmov.u32 %r1, %tid.x;\nsetp.eq.u32 %p0, %r1, 0;\n\
                @%p0 mbarrier.init.shared::cta.b64 [%r0], 1;\nbar.sync 0;\n.loc 1 22 3\n{ .param .b32 a; \
                st.param.b32 [a], %r0; call wait, (a); }\n.loc 1 23 3";
    let found = finding(body, wait);
    assert_eq!(found.kind.name(), "deadlock");
    let source = found.blocked[0].source.as_ref().unwrap();
    assert_eq!((source.line, &source.called_at[..]), (5, &[22][..]));
}
