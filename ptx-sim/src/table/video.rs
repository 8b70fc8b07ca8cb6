//! Forms of the video instructions (PTX ISA §9.7.18).

use super::family::{Family, FamilyRow, row};

/// The families.
pub(super) const ROWS: &[FamilyRow] = &[
    row(
        Family::Video,
        "{vadd vsub vabsdiff vmin vmax} {u32 s32} {u32 s32} {u32 s32} [sat] [add min max]",
        "9.7.18.1",
        "d = the operation on a byte, a half or all of a and of b, merged into c or combined with it",
    ),
    row(
        Family::Video,
        "vset {u32 s32} {u32 s32} {eq ne lt le gt ge} [add min max]",
        "9.7.18.1",
        "d = the comparison of such parts, merged into c or combined with it",
    ),
    row(
        Family::Video,
        "{vshl vshr} {u32 s32} {u32 s32} u32 [sat] {clamp wrap} [add min max]",
        "9.7.18.1",
        "d = such a part moved, merged into c or combined with it",
    ),
    row(
        Family::VideoMad,
        "vmad {u32 s32} {u32 s32} {u32 s32} [po] [sat] [shr7 shr15]",
        "9.7.18.1",
        "d = ± the product of such parts ± c, and one with po, shifted right",
    ),
    row(
        Family::Video,
        "{vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2 vadd4 vsub4 vavrg4 vabsdiff4 vmin4 vmax4} {u32 s32} {u32 s32} {u32 s32} [sat] [add]",
        "9.7.18.2",
        "d = the operation on halves or bytes that a and b select of both, the others those of c; or their sum and c",
    ),
    row(
        Family::Video,
        "{vset2 vset4} {u32 s32} {u32 s32} {eq ne lt le gt ge} [add]",
        "9.7.18.2",
        "d = the comparison of such parts, the others those of c; or their sum and c",
    ),
];
