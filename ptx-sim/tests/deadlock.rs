//! What a deadlock says: which warps wait, for what, and who has come.

use ptx_sim::{BlockedOn, Finding, FindingKind, LaunchConfig, Memory, Module, SimError, launch};

fn deadlock(text: &str, threads: u32) -> Finding {
    let module = Module::parse(text).unwrap();
    let config = LaunchConfig::new([1, 1, 1], [threads, 1, 1]);
    match launch(&module, "k", &[], &mut Memory::new(), &config) {
        Err(SimError::Finding(finding)) if finding.kind == FindingKind::Deadlock => *finding,
        other => panic!("expected a deadlock, got {other:?}"),
    }
}

#[test]
fn a_wrong_barrier_number_is_named() {
    let found = deadlock(include_str!("fail/deadlock/producer_barrier.ptx"), 96);
    let on = |warps: &[u32]| BlockedOn::Barrier { id: 3, expected: 96, arrived: 64, warps: warps.to_vec() };
    assert_eq!(found.blocked.iter().map(|b| (b.warp, b.line)).collect::<Vec<_>>(), [(1, 20), (2, 20)]);
    assert!(found.blocked.iter().all(|b| b.on == on(&[1, 2])), "{found}");
    assert!(found.to_string().contains("barrier 3: 64 of 96 threads have come, of warps [1, 2]"), "{found}");
}

#[test]
fn an_unfilled_mbarrier_is_named_with_its_phase_and_who_arrived() {
    let found = deadlock(include_str!("fail/deadlock/mbarrier_parity.ptx"), 64);
    assert_eq!(found.blocked.len(), 1);
    let line = found.blocked[0].to_string();
    assert!(line.starts_with("warp 1 waits at line 33 for the mbarrier at 0x400 (bar+0)"), "{line}");
    assert!(line.contains("phase 1 (parity 1) lacks 1 of 1 arrivals and 0 bytes"), "{line}");
    assert!(line.ends_with("came from warp 0 at line 24 (exited)"), "{line}");
    let json = found.to_json();
    assert!(json.contains("\"blocked\":[{\"warp\":1,\"lanes\":4294967295,\"line\":33,\"on\":\"mbarrier\""));
}

#[test]
fn bytes_that_never_come_are_counted() {
    let found = deadlock(include_str!("fail/deadlock/mbarrier_bytes.ptx"), 64);
    let BlockedOn::Mbarrier { bytes, arrivals, .. } = &found.blocked[0].on else { panic!("{found}") };
    assert_eq!((*bytes, *arrivals), (128, 0));
}
