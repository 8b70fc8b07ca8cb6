//! Bit-field and byte instructions (PTX ISA §9.7.1, §9.7.8, §9.7.9.7).

/// Position and length count to 255; what hardware makes of more depends on the width.
fn field_operand(value: u32, width: u32) -> u32 {
    if width == 32 { value & 0xff } else { value }
}

/// `len` bits of `a` from `pos`, zero-extended; bits beyond the width read as zero.
pub(crate) fn extract_unsigned(a: u64, pos: u32, len: u32, width: u32) -> u64 {
    let (pos, len) = (field_operand(pos, width), field_operand(len, width));
    if pos >= width || len == 0 {
        return 0;
    }
    let shifted = a >> pos;
    if len >= 64 { shifted } else { shifted & ((1 << len) - 1) }
}

/// `len` bits of `a` from `pos`, sign-extended; bits beyond the width read as the sign of `a`.
pub(crate) fn extract_signed(a: i64, pos: u32, len: u32, width: u32) -> i64 {
    let (pos, len) = (field_operand(pos, width), field_operand(len, width));
    if len == 0 {
        return 0;
    }
    if pos >= width {
        return a >> 63;
    }
    let shifted = a >> pos;
    if len >= 64 { shifted } else { shifted << (64 - len) >> (64 - len) }
}

/// `b` with the low `len` bits of `a` put in at `pos`.
pub(crate) fn insert(a: u64, b: u64, pos: u32, len: u32, width: u32) -> u64 {
    let (pos, len) = (field_operand(pos, width), field_operand(len, width));
    if len == 0 || pos >= width {
        return b;
    }
    let field = if len >= 64 { u64::MAX } else { (1 << len) - 1 } << pos;
    b & !field | a << pos & field
}

/// c + Σ aᵢ·bᵢ over unsigned bytes.
pub(crate) fn dot4_unsigned(a: u32, b: u32, c: u32) -> u32 {
    let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes()).map(|(x, y)| u32::from(x) * u32::from(y));
    products.fold(c, u32::wrapping_add)
}

/// c + Σ aᵢ·bᵢ over signed bytes.
pub(crate) fn dot4_signed(a: u32, b: u32, c: u32) -> u32 {
    let products = a
        .to_le_bytes()
        .into_iter()
        .zip(b.to_le_bytes())
        .map(|(x, y)| i32::from(x as i8) * i32::from(y as i8));
    products.fold(c, |sum, product| sum.wrapping_add(product as u32))
}

/// High word of (b:a) << c.
pub(crate) fn funnel_left(a: u32, b: u32, c: u32) -> u32 {
    let both = u64::from(b) << 32 | u64::from(a);
    (both << c >> 32) as u32
}

/// Low word of (b:a) >> c.
pub(crate) fn funnel_right(a: u32, b: u32, c: u32) -> u32 {
    let both = u64::from(b) << 32 | u64::from(a);
    (both >> c) as u32
}

/// The function of three bits whose truth table is `table`, bit `4a + 2b + c` being its value at (a, b, c).
pub(crate) fn lop3(a: u32, b: u32, c: u32, table: u32) -> u32 {
    (0..8).filter(|row| table >> row & 1 == 1).fold(0, |sum, row| {
        let pick = |x: u32, bit: u32| if row >> bit & 1 == 1 { x } else { !x };
        sum | pick(a, 2) & pick(b, 1) & pick(c, 0)
    })
}

/// Four bytes of (b:a), one for each nibble of `selector`; a nibble's top bit replicates the byte's sign instead.
pub(crate) fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let both = u64::from(b) << 32 | u64::from(a);
    (0..4).fold(0, |word, i| {
        let nibble = selector >> (4 * i) & 15;
        let byte = (both >> (8 * (nibble & 7))) as u8;
        let byte = if nibble & 8 == 0 {
            byte
        } else if byte & 0x80 != 0 {
            0xff
        } else {
            0
        };
        word | u32::from(byte) << (8 * i)
    })
}

/// Selector of `prmt.f4e`: four bytes upward from byte c.
pub(crate) fn forward_4(c: u32) -> u32 {
    (0..4).fold(0, |s, i| s | ((c & 3) + i) << (4 * i))
}

/// Selector of `prmt.b4e`: four bytes downward from byte c, modulo 8.
pub(crate) fn backward_4(c: u32) -> u32 {
    (0..4).fold(0, |s, i| s | ((c & 3).wrapping_sub(i) & 7) << (4 * i))
}

/// Selector of `prmt.rc8`: byte c four times.
pub(crate) fn replicate_8(c: u32) -> u32 {
    (c & 3) * 0x1111
}

/// Selector of `prmt.ecl`: bytes below c are replaced by byte c.
pub(crate) fn edge_left(c: u32) -> u32 {
    (0..4).fold(0, |s, i| s | (c & 3).max(i) << (4 * i))
}

/// Selector of `prmt.ecr`: bytes above c are replaced by byte c.
pub(crate) fn edge_right(c: u32) -> u32 {
    (0..4).fold(0, |s, i| s | (c & 3).min(i) << (4 * i))
}

/// Selector of `prmt.rc16`: halfword c twice.
pub(crate) fn replicate_16(c: u32) -> u32 {
    if c & 1 == 0 { 0x1010 } else { 0x3232 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        assert_eq!(extract_unsigned(0xabcd_1234, 8, 8, 32), 0x12);
        assert_eq!(extract_unsigned(0xabcd_1234, 28, 8, 32), 0xa);
        assert_eq!(extract_unsigned(u64::MAX, 0, 64, 64), u64::MAX);
        assert_eq!(extract_signed(0x80, 4, 4, 32), -8);
        assert_eq!(extract_signed(i64::from(0x8000_0000u32 as i32), 28, 8, 32), -8);
        assert_eq!(extract_signed(-1, 40, 8, 32), -1);
        assert_eq!(insert(0xff, 0, 4, 4, 32), 0xf0);
        assert_eq!(insert(0xff, 7, 32, 4, 32), 7);
    }

    #[test]
    fn logic_and_bytes() {
        let (a, b, c) = (0x1234_5678, 0x9abc_def0, 0x0f0f_f0f0);
        assert_eq!(lop3(a, b, c, 0xf0 & 0xcc & 0xaa), a & b & c);
        assert_eq!(lop3(a, b, c, 0xf0 ^ 0xcc ^ 0xaa), a ^ b ^ c);
        assert_eq!(lop3(a, b, c, 0xd8), c & b | !c & a);
        assert_eq!(permute(0x4433_2211, 0x8877_6655, 0x5410), 0x6655_2211);
        assert_eq!(permute(0x4433_2211, 0x8877_6655, 0x7701), 0x8888_1122);
        assert_eq!(permute(0x0000_8000, 0, 0x9999), 0xffff_ffff);
        assert_eq!((forward_4(1), backward_4(1), replicate_8(2)), (0x4321, 0x6701, 0x2222));
        assert_eq!((edge_left(2), edge_right(2), replicate_16(1)), (0x3222, 0x2210, 0x3232));
        assert_eq!((funnel_left(0x8000_0000, 1, 1), funnel_right(2, 1, 1)), (3, 0x8000_0001));
        assert_eq!(funnel_left(5, 6, 32), 5);
        assert_eq!(dot4_signed(0x00ff_0102, 0x0003_0405, 10), 10u32.wrapping_add(10 + 4).wrapping_sub(3));
        assert_eq!(dot4_unsigned(0x0000_ff02, 0x0000_ff03, 1), 1 + 255 * 255 + 6);
    }
}
