use check::predict;
use ferroflash::module::Library;
use ferroflash::{DeviceModel, Profile};
use std::sync::Arc;

fn main() {
    let library = Arc::new(Library::find(None).expect("kernels"));
    let filter: Vec<String> = std::env::args().skip(1).collect();
    let model = DeviceModel::H200;
    let gpu = ptx_sim::Gpu::find(model.name).expect("known");
    let profile = Profile::embedded(&model.info()).expect("there");
    for kernel in library.kernels() {
        if !filter.iter().any(|f| kernel.entry.contains(f)) || kernel.entry.contains("ragged") { continue; }
        let at = std::time::Instant::now();
        match predict::clocks(&library, kernel, model, &gpu) {
            Ok(c) => {
                let us = |c: f64| c / 1980.0;
                let m = profile.costs(kernel).whole;
                if let Some(m) = m {
                    println!("{:45} R{} start {:.2}/{:.2} {:.2}/{:.2} block {:.3}/{:.3} ({:.2}) busy {:.3}/{:.3} ({:.2}) masked {:.3} {:.3}/{:.3} tensor {:.2} in {:.1}s",
                        kernel.entry, c.resident, us(c.start), m.start, us(c.start_busy), m.start_busy, us(c.block), m.block, us(c.block)/m.block, us(c.block_busy), m.block_busy, us(c.block_busy)/m.block_busy, us(c.masked), us(c.masked_busy), m.masked, c.tensor, at.elapsed().as_secs_f64());
                }
            }
            Err(e) => println!("{}: {e}", kernel.entry),
        }
    }
}
