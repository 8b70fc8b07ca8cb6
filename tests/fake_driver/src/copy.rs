//! Copies within the device, word by word as the kernel numbers them.

use crate::CuResult;
use crate::launch::{check_array, check_divisors, refuse};
use kernels_gpu::step_params::{COPY_PIECES, CopyBlock, CopyParams};
use kernels_gpu::steps::StepVariant;

/// A launch of the kernel that copies.
#[derive(Clone)]
pub(crate) struct Copy {
    pub(crate) variant: &'static StepVariant,
    pub(crate) params: CopyParams,
    pub(crate) ctas: u32,
}

impl Copy {
    fn blocks(&self) -> impl Iterator<Item = &CopyBlock> {
        self.params.blocks.iter().take_while(|block| block.first_share != u32::MAX)
    }

    pub(crate) fn check(&self) -> Result<(), CuResult> {
        let entry = self.variant.entry;
        let mut shares = 0;
        for block in self.blocks() {
            let CopyBlock { from, to, from_pitch, to_pitch, row, pieces, first_share, piece_bytes } = *block;
            if first_share != shares || pieces == 0 || !pieces.is_multiple_of(row.value) {
                return Err(refuse(entry, "blocks do not follow each other, or rows are not whole"));
            }
            shares += pieces.div_ceil(self.variant.row.threads() * COPY_PIECES);
            check_divisors(entry, &[row], [0, pieces / 2, pieces - 1])?;
            let all = from | to | from_pitch | to_pitch;
            if ![4, 16].contains(&piece_bytes) || !all.is_multiple_of(piece_bytes.into()) {
                return Err(refuse(entry, &format!("pieces of {piece_bytes} bytes")));
            }
            let row_bytes = u64::from(row.value) * u64::from(piece_bytes);
            for number in [0, u64::from(pieces / row.value) - 1] {
                check_array(entry, "what is read", from + number * from_pitch, row_bytes / 4)?;
                check_array(entry, "what is written", to + number * to_pitch, row_bytes / 4)?;
            }
        }
        if self.params.shares != shares || self.ctas > shares {
            return Err(refuse(entry, &format!("a grid of {} for {shares} shares", self.ctas)));
        }
        Ok(())
    }

    /// # Safety
    /// The launch was checked, and nobody else uses its memory.
    pub(crate) unsafe fn compute(&self) {
        for block in self.blocks() {
            for piece in 0..block.pieces {
                let (row, column) = (piece / block.row.value, piece % block.row.value);
                let at = |pitch: u64| u64::from(row) * pitch + u64::from(column * block.piece_bytes);
                let (from, to) = (block.from + at(block.from_pitch), block.to + at(block.to_pitch));
                // SAFETY: a piece of a row in memory.
                unsafe {
                    (from as *const u8).copy_to_nonoverlapping(to as *mut u8, block.piece_bytes as usize)
                };
            }
        }
    }
}
