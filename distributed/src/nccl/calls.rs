//! Calls of NCCL, and what becomes of them.

use super::library::{Comm, IN_PROGRESS, Library, NcclResult, SUCCESS};
use super::{Nccl, REST};
use crate::Error;
use crate::transport::Step;
use std::ffi::c_void;
use std::time::Instant;

/// What a call in a group says, which may be that it is not over.
pub(super) fn call(name: &'static str, result: NcclResult) -> Result<(), (&'static str, NcclResult)> {
    if result == SUCCESS || result == IN_PROGRESS { Ok(()) } else { Err((name, result)) }
}

impl Nccl {
    /// Takes in the result of a call, and waits where NCCL is still at it.
    pub(super) fn settle(
        &mut self,
        call: &'static str,
        mut result: NcclResult,
        step: Step,
        ranks: &[u32],
    ) -> Result<(), Error> {
        let until = Instant::now() + self.limit;
        while result == IN_PROGRESS {
            if Instant::now() >= until {
                return Err(self.given_up(Error::Unfinished {
                    ranks: ranks.to_vec(),
                    step,
                    limit: self.limit,
                }));
            }
            std::thread::sleep(REST);
            result = self.async_error();
        }
        match result {
            SUCCESS => Ok(()),
            result => {
                let reason = self.library.words(result);
                Err(self.given_up(Error::Nccl { call, reason, step }))
            }
        }
    }

    /// What NCCL has found since, or that it is still at something.
    pub(super) fn async_error(&self) -> NcclResult {
        let mut found = SUCCESS;
        // SAFETY: the communicator lives; writes one result where it is told to.
        match unsafe { (self.library.comm_get_async_error)(self.comm(), &mut found) } {
            SUCCESS => found,
            result => result,
        }
    }

    /// Makes calls as one group on the transport's stream.
    pub(super) fn group(
        &mut self,
        step: Step,
        ranks: &[u32],
        mut calls: impl FnMut(&Library, Comm, *mut c_void) -> Result<(), (&'static str, NcclResult)>,
    ) -> Result<(), Error> {
        let (library, comm, stream) = (self.library, self.comm(), self.side.stream().as_raw());
        let device = self.side.device().clone();
        let made = device.with_current(|| {
            // SAFETY: a group is per thread, and ends below whatever its calls say.
            let started = unsafe { (library.group_start)() };
            let called = calls(library, comm, stream);
            // SAFETY: as above.
            let ended = unsafe { (library.group_end)() };
            (started, called, ended)
        })?;
        let (call, result) = match made {
            (SUCCESS, Ok(()), ended) => ("ncclGroupEnd", ended),
            (SUCCESS, Err((call, result)), _) => (call, result),
            (started, ..) => ("ncclGroupStart", started),
        };
        self.settle(call, result, step, ranks)
    }
}
