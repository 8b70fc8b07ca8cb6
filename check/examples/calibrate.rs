//! dev
use check::measure::kept;
use check::predict;
use ferroflash::module::Library;
use ferroflash::{DeviceModel, Planner, Profile};
use std::collections::BTreeMap;
use std::sync::Arc;

fn main() {
    let library = Arc::new(Library::find(None).expect("kernels"));
    let model = DeviceModel::H200;
    let gpu = ptx_sim::Gpu::find(model.name).expect("known");
    let mut kernels = BTreeMap::new();
    let at = std::time::Instant::now();
    for kernel in library.kernels() {
        let key = Profile::key(&kernel.entry);
        if kernel.entry.contains("ragged") || kernels.contains_key(&key) { continue; }
        match predict::clocks(&library, kernel, model, &gpu) {
            Ok(c) => { kernels.insert(key, predict::simulated(&kernel.row, &c, model, &gpu)); }
            Err(e) => println!("{}: {e}", kernel.entry),
        }
    }
    println!("{} kernels in {:.1} s", kernels.len(), at.elapsed().as_secs_f64());
    let records: Vec<_> = std::env::args().skip(1).flat_map(|f| kept::read(f.as_ref()).expect("records")).collect();
    let planner = Planner::with_profile(&library, &model.info(), None);
    let (calibration, parts) = predict::calibrate(&planner, &records, &kernels, &|k| k.contains("wgmma")).expect("fits");
    for (part, a) in parts { println!("{part:?} {a:?}"); }
    println!("{}", serde_json::to_string(&calibration).expect("text"));
    println!("in {:.1} s", at.elapsed().as_secs_f64());
}
