//! The options about sequences that are split among several devices.

use crate::failure::Failure;
use crate::output;
use clap::ValueEnum;
use ferroflash_distributed::nccl::NcclOptions;
use ferroflash_distributed::{ContextOptions, Error, Method};
use std::time::Duration;

/// Devices, and how a sequence is split among them.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DevicesArgs {
    /// Split the sequence among this number of devices; several numbers are joined by commas
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) devices: Vec<u32>,

    /// How keys and values reach the queries of other devices, joined by commas [default: all that can; `plan` chooses]
    #[arg(long, value_enum, value_delimiter = ',', requires = "devices")]
    method: Vec<MethodName>,

    /// Groups of heads of an all-gather, of which one travels while another is computed [default: each twice as large as the
    /// one before]
    #[arg(long, value_name = "N", requires = "devices", value_parser = clap::value_parser!(u32).range(1..))]
    head_groups: Option<u32>,

    /// `bench` enqueues ranks' calls one by one, instead of replaying a graph of them
    #[arg(long, requires = "devices")]
    pub(crate) eager: bool,
}

/// What connects the devices.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct OverArgs {
    /// Put each rank on a GPU of its own, all at once, connected by this; the first GPU is --ordinal's. Without, `bench` runs ranks one by
    /// one on one GPU, and `verify` moves what they exchange through the host
    #[arg(long, value_enum, requires = "devices")]
    over: Option<LinkName>,

    /// With --over: a rank waits for others no longer than this
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    rank_limit: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LinkName {
    /// NCCL, opened at run time; GPUs that reach each other's memory copy there what they exchange
    Nccl,
    /// NCCL alone
    NcclAlone,
}

impl OverArgs {
    /// How to connect GPUs, where each rank has one of its own.
    pub(crate) fn nccl(&self) -> Option<NcclOptions> {
        let limit = Duration::from_secs(self.rank_limit);
        let options =
            |link| NcclOptions { limit, peer_memory: link == LinkName::Nccl, ..NcclOptions::default() };
        self.over.map(options)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MethodName {
    /// Every device receives all keys and values that its queries see: nothing is merged
    AllGather,
    /// Keys and values go round; float32 partial results are merged at the end
    Ring,
    /// Devices exchange heads for rows
    Ulysses,
}

impl DevicesArgs {
    /// The methods that were named; all where none was.
    pub(crate) fn methods(&self) -> Vec<Method> {
        let method = |name: &MethodName| match name {
            MethodName::AllGather => Method::AllGather,
            MethodName::Ring => Method::Ring,
            MethodName::Ulysses => Method::Ulysses,
        };
        if self.method.is_empty() { Method::ALL.to_vec() } else { self.method.iter().map(method).collect() }
    }

    /// A method with these options.
    pub(crate) fn context(&self, method: Method) -> ContextOptions {
        ContextOptions { method, head_groups: self.head_groups, ..ContextOptions::default() }
    }

    /// What came of a method; `None`, and a line that says why, where it cannot and nobody named it.
    pub(crate) fn unless_refused<T>(
        &self,
        title: &str,
        result: Result<T, Error>,
    ) -> Result<Option<T>, Failure> {
        match result {
            Err(error @ Error::Refused { .. }) if self.named().is_none() => {
                output::print(&format!("{title}: {error}"));
                Ok(None)
            }
            result => Ok(Some(result?)),
        }
    }

    /// The one method that was named.
    pub(crate) fn named(&self) -> Option<Method> {
        (!self.method.is_empty()).then(|| self.methods()[0])
    }
}
