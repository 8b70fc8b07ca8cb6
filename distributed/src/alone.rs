//! A world of one: its rank has all keys, and computes where they are, whatever the method.

use crate::Error;
use crate::context::{RankTensors, Schedule, Setup};
use crate::lane::Lane;
use ferroflash::{Attention, DeviceTensors, Plan, PlanOptions, StreamHandle};

pub(crate) struct Alone(Plan);

impl Alone {
    pub(crate) fn new(attention: &Attention, setup: &Setup) -> Result<Alone, Error> {
        let options = PlanOptions::from(setup.options.rows.clone());
        Ok(Alone(attention.planner().plan(&setup.problem, &options)?))
    }
}

impl Schedule for Alone {
    fn buffer_bytes(&self) -> u64 {
        0
    }

    fn plans(&self) -> Vec<&Plan> {
        vec![&self.0]
    }

    unsafe fn forward(
        &mut self,
        lane: &mut Lane,
        _: &Setup,
        tensors: &RankTensors,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        let RankTensors { q, k, v, o, lse } = *tensors;
        // SAFETY: the caller's promise.
        unsafe { lane.attention.launch(&self.0, &DeviceTensors::new(q, k, v, o).with_lse(lse), stream)? };
        Ok(())
    }
}
