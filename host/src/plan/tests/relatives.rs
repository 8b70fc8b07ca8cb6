//! Devices that nobody measured.

use super::super::profile::{self, KernelCosts, Profile};
use super::*;

#[test]
fn a_device_that_nobody_measured_costs_what_its_relative_does_by_their_data_sheets() {
    let slower = DeviceInfo { name: "NVIDIA H20".to_owned(), sm_count: 78, ..DeviceModel::H200.info() };
    let rows: Vec<Row> = VARIANTS.iter().map(|variant| variant.row).collect();
    let library = library(&rows);
    let of_h200 = Profile::embedded(&DeviceModel::H200.info()).expect("it comes with the library");
    let measured = |entry: &str| of_h200.kernels.contains_key(&Profile::key(entry));
    for kernel in library.kernels().iter().filter(|kernel| measured(&kernel.entry)) {
        let theirs = of_h200.measured(kernel).whole.expect("measured");
        let ours = profile::estimated(kernel, &slower).whole.expect("estimated");
        assert_eq!(ours.start, theirs.start, "{}", kernel.entry);
        let share = profile::by_data_sheet(&kernel.row, &slower).memory
            / profile::by_data_sheet(&kernel.row, &DeviceModel::H200.info()).memory;
        assert!((ours.memory / theirs.memory / share - 1.0).abs() < 1e-12 && share > 1.0);
        // The measured one itself has no relative, and neither has another architecture.
        for info in [DeviceModel::H200.info(), DeviceModel::L4.info()] {
            let whole = Some(profile::by_data_sheet(&kernel.row, &info));
            let alone = KernelCosts { whole, ..KernelCosts::default() };
            assert_eq!(profile::estimated(kernel, &info), alone);
        }
    }
}
