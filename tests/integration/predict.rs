//! Predicted times: how far they are from the kept times of an H200, and how the command speaks of them.

use crate::support::{self, ferroflash, folder};
use check::measure::kept;
use check::predict::{self, Part, Predictor};
use ferroflash::{DeviceModel, Planner};
use std::path::Path;

support::trials!(
    predictions_rank_times_that_nothing_was_fitted_to,
    a_prediction_is_called_one_and_has_an_error,
    what_cannot_be_predicted_is_refused,
);

/// The kernels are today's, the times those of kernels of a day before. Factors were fitted to the H200 alone: for the H100 nothing but
/// the device's figures changes.
fn predictions_rank_times_that_nothing_was_fitted_to() {
    let library = support::library();
    for (name, file) in
        [("h200", "2026-11-22-h200-plans-random.jsonl.gz"), ("h100", "2026-11-23-h100-plans.jsonl.gz")]
    {
        let model = DeviceModel::find(name).expect("known");
        let predictor = Predictor::new(library.clone(), model).expect("known");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/results").join(file);
        let mut records = kept::read(&path).expect("kept");
        records.retain(|record| record.index % 8 == 0);
        let kernels = predictor.simulate(&predict::is_left_out, &|_, _| ()).expect("simulated");
        let sheet = Planner::with_profile(&library, &model.info(), None);
        let judged = predict::judge(&sheet, &records, &kernels, predictor.calibration()).expect("planned");
        let (_, found) = judged.iter().find(|(part, _)| *part == Part::Apart).expect("some were left out");
        println!("{}: {found:?}", model.title);
        assert!(found.pairs >= 200 && found.spearman >= 0.9 && found.median <= 0.15, "{found:?}");
        // What `plan` prints of its error is what such a comparison finds.
        let printed = predictor.accuracy().expect("compared");
        assert!((found.median / printed.median - 1.0).abs() < 0.3, "{found:?} {printed:?}");
    }
}

fn a_prediction_is_called_one_and_has_an_error() {
    let folder = folder();
    let shape = ["--shape", "2,8,8,512,512,64", "--predict"];
    let plan = |args: &[&str]| ferroflash(folder.path(), &[&["plan"], &shape[..], args].concat());
    let own = plan(&["--device-model", "h200"]);
    let own = &own.succeeded().stdout;
    assert!(own.contains("µs predicted for NVIDIA H200 at 1980 MHz (±6 % for half"), "{own}");
    assert!(!own.contains("never compared"), "{own}");
    let other = plan(&["--device-model", "l4", "--clock", "1500"]);
    let other = &other.succeeded().stdout;
    assert!(other.contains("µs predicted for NVIDIA L4 at 1500 MHz (±"), "{other}");
    assert!(other.contains("never compared with this device"), "{other}");
    let json = plan(&["--device-model", "h100", "--json"]).succeeded().json();
    let predicted = &json[0]["predicted"];
    assert!(predicted["predicted_us"].as_f64().is_some_and(|us| (2.0..20.0).contains(&us)), "{predicted}");
    assert_eq!(predicted["calibrated_on_this_device"], false);
    assert_eq!(predicted["compared_with_this_device"], true);
    let bench =
        ["bench", "--device", "sim", "--device-model", "l4", "--shape", "1,1,1,64,64,64", "--predict"];
    let counted = ferroflash(folder.path(), &bench);
    let counted = &counted.succeeded().stdout;
    assert!(
        counted.contains("no time is measured") && counted.contains("µs predicted for NVIDIA L4"),
        "{counted}"
    );
}

fn what_cannot_be_predicted_is_refused() {
    let folder = folder();
    for args in [
        &["plan", "--shape", "1,1,1,64,64,64", "--clock", "1500"][..],
        &["plan", "--shape", "1,1,1,64,64,64", "--predict", "--clock", "5"],
        &["tune", "--predict"],
        &["tune", "--predict", "--device-model", "l4", "--keep", "x.jsonl"],
    ] {
        let ended = ferroflash(folder.path(), args);
        assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.stderr);
    }
}
