//! `ferroflash doctor`.

#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> Result<(), ferroflash::Error> {
    Ok(())
}
